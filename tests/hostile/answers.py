"""Clients that check whose answers they get, of a server in which calls fail after commits.

Several clients send pipelined requests in packets cut anywhere, and live reads at the end of some
rounds. The server may fail: with 500 or 504 to one request, or by closing one connection, and not
more often than it was made to fail (`faults/sitecustomize.py`).
"""

from __future__ import annotations

import os
import random
import re
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Final

import httpx

from headrace.protocol.sse import EventDecoder, ReceivedEvent
from headrace.testing.raw_http import EndOfConnection, RawConnection, RawResponse
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.durability.modes import settings
from tests.hostile import marked_requests
from tests.hostile.marked_requests import STORIES, Sent, Story

CLIENTS: Final = 3
ROUNDS: Final = 40
STORIES_PER_ROUND_MAX: Final = 6
LIVE_SHARE: Final = 0.3  # of all rounds
LARGE_SHARE: Final = 0.04  # of all stories: answers that are sent in windows
LARGE_BYTES: Final = 400_000
ANSWER_SECS: Final = 30.0  # the server itself gives up after four
POLL_SECS: Final = 1.0
# Of all requests, so many have an answer: the others came behind one that ended its connection.
ANSWERED_SHARE_MIN: Final = 0.6
_FAULTS: Final = Path(__file__).parent / "faults"
_PLANTED: Final = re.compile(r"planted fault number (\d+): (.*)")
# Where uvloop asks for a buffer: it closes the connection for a fault in there and logs nothing.
UNLOGGED: Final = {"BodyReceiver.get_buffer", "LargeBody.room"}
_LOGGED: Final = re.compile(r"PlantedFault: number (\d+): ")


class FaultyServer(ServerProcess):
    """Each seed is another order of faults; a `mutant` is what must not pass."""

    def __init__(self, mode: str, directory: Path, seed: int, mutant: str = "") -> None:
        env = settings(mode, directory / "data") | {
            "DS_SERVER__LONG_POLL_TIMEOUT_SECS": str(POLL_SECS),
            "DS_HTTP__ANSWER_TIMEOUT_SECS": "3",
            "HEADRACE_FAULTS": str(seed),
            "HEADRACE_MUTANT": mutant,
            "PYTHONPATH": os.pathsep.join([str(_FAULTS), os.environ.get("PYTHONPATH", "")]),
        }
        super().__init__(env, cwd=str(directory))

    @property
    def planted(self) -> dict[str, str]:
        """The number of each fault, and the function that raised it."""
        return {found[1]: found[2] for line in self.log if (found := _PLANTED.match(line))}

    @property
    def swallowed(self) -> list[str]:
        """The functions whose faults nobody logged."""
        logged = {found[1] for line in self.log if (found := _LOGGED.search(line))}
        silent = {name for number, name in self.planted.items() if number not in logged}
        return sorted(silent - UNLOGGED)


@dataclass
class Findings:
    """What the clients met. Each planted fault may cost one answer, or end one connection."""

    problems: list[str] = field(default_factory=list)
    requests: int = 0
    answers: int = 0
    failures: int = 0
    closes: int = 0
    planted: int = 0

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, {self.answers} answers, {self.planted} faults: "
            f"{self.failures} answers of 500 or 504, {self.closes} connections closed"
        )

    def violations(self) -> list[str]:
        found = list(self.problems)
        if self.failures + self.closes > self.planted:
            found.append(f"more clients met a failure than there were faults: {self}")
        if self.answers < ANSWERED_SHARE_MIN * self.requests:
            found.append(f"too few requests have an answer: {self}")
        return found


def serve_and_run(
    mode: str, directory: Path, seed: int, rounds: int = ROUNDS, mutant: str = ""
) -> Findings:
    server = FaultyServer(mode, directory, seed, mutant)
    server.start()
    try:
        return _run(server, seed, rounds)
    finally:
        if server.is_running:
            server.kill()


def _run(server: FaultyServer, seed: int, rounds: int) -> Findings:
    """So many rounds of each client against a server that is running, and is stopped after."""
    found = Findings()
    eventually(lambda: _has_wake_stream(server.url), "the wake stream is made")
    clients = [_Client(server.port, number, seed, found) for number in range(CLIENTS)]
    threads = [Thread(target=client.run, args=(rounds,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not server.is_running:
        found.problems.append("the server has ended:\n" + "".join(server.log[-60:]))
    elif (code := server.stop()) != 0:
        found.problems.append(f"the server stopped with {code}:\n" + "".join(server.log[-60:]))
    found.planted = len(server.planted)
    found.problems += [f"a fault in {function} is not logged" for function in server.swallowed]
    return found


def _has_wake_stream(url: str) -> bool:
    """Made without a fault, or after one."""
    try:
        kind = {"Content-Type": marked_requests.JSON}
        return httpx.put(f"{url}/v1/stream/wakes", headers=kind).is_success
    except httpx.TransportError:
        return False


class _Client:
    """Sends rounds of pipelined requests, each on a connection of its own."""

    def __init__(self, port: int, number: int, seed: int, found: Findings) -> None:
        self._port = port
        self._number = number
        self._found = found
        self._random = random.Random(f"{seed} {number}")
        self._count = 0

    def run(self, rounds: int) -> None:
        for number in range(rounds):
            try:
                with self._connect() as connection:
                    self._round(connection)
            except Exception:
                where = f"client {self._number}, round {number}"
                self._found.problems.append(f"{where}: {traceback.format_exc()}")

    def _connect(self) -> RawConnection:
        return RawConnection(self._port, deadline_secs=ANSWER_SECS)

    def _round(self, connection: RawConnection) -> None:
        requests: list[Sent] = []
        for _ in range(self._random.randint(2, STORIES_PER_ROUND_MAX)):
            [tell] = self._random.choices(list(STORIES), list(STORIES.values()))
            requests += tell(self._story())
        if self._random.random() < LIVE_SHARE:
            self._live_round(connection, requests)
            return
        self._send(connection, requests)
        if not all(self._answered(connection, sent) for sent in requests):
            return
        connection.finish_sending()
        assert connection.rest() == b"", "more answers than requests"

    def _story(self) -> Story:
        self._count += 1
        number = self._number + CLIENTS * self._count
        size = LARGE_BYTES if self._random.random() < LARGE_SHARE else 100
        return Story(f"m{number:05d}", number, size + number)

    def _send(self, connection: RawConnection, requests: list[Sent]) -> None:
        self._found.requests += len(requests)
        with suppress(BrokenPipeError, ConnectionResetError):  # what was answered is read later
            for packet in self._cut(b"".join(sent.data for sent in requests)):
                connection.send(packet)

    def _cut(self, data: bytes) -> Iterator[bytes]:
        sizes = [1, 7, 60, 500, 5000, len(data)]
        while data:
            size = max(self._random.choice(sizes), len(data) // 1000)
            yield data[:size]
            data = data[size:]

    def _answered(self, connection: RawConnection, sent: Sent) -> bool:
        """Whether the connection goes on."""
        try:
            answer = connection.response(head_only=sent.method == "HEAD")
        except (EndOfConnection, ConnectionResetError):
            self._found.closes += 1
            sent.story.in_doubt = True
            return False
        self._judge(sent, answer)
        return answer.headers.get("connection") != "close"

    def _judge(self, sent: Sent, answer: RawResponse) -> None:
        self._found.answers += 1
        self._found.failures += sent.check(answer)

    # -- live reads ------------------------------------------------------------------------

    def _live_round(self, connection: RawConnection, requests: list[Sent]) -> None:
        """The last request waits at the tail for what comes over another connection."""
        story = self._story()
        open_read = self._random.choice([*marked_requests.POLLS, marked_requests.events])
        # First, as a read that was there before its stream was announced would be woken by that.
        create = marked_requests.create(story)
        self._send(connection, [create])
        if not self._answered(connection, create):
            return
        requests = [*requests, open_read(story)]
        begun = time.monotonic()
        self._send(connection, requests)
        if not all(self._answered(connection, sent) for sent in requests[:-1]):
            return
        if open_read is marked_requests.events:
            self._follow(connection, requests[-1])
            return
        self._append(story)
        waited_secs = time.monotonic() - begun
        # Before its time was up, the append was there for it.
        poll = replace(requests[-1], also=()) if waited_secs < POLL_SECS else requests[-1]
        if self._answered(connection, poll):
            connection.finish_sending()
            assert connection.rest() == b"", "more answers than requests"

    def _append(self, story: Story) -> None:
        with self._connect() as other:
            sent = marked_requests.append(story)
            self._send(other, [sent])
            self._answered(other, sent)

    def _follow(self, connection: RawConnection, sent: Sent) -> None:
        """Everything of the stream, in order and once; the end may come early, by a fault."""
        story = sent.story
        try:
            head = connection.head()
            if head.status != 200 or "text/event-stream" not in head.headers["content-type"]:
                size = int(head.headers.get("content-length", "0"))
                self._judge(sent, RawResponse(head.status, head.headers, connection._exactly(size)))
                return
            self._judge(sent, head)
            events = _events(connection)
            self._expect(events, story.first, story.offset(1))
            self._append(story)
            if not story.in_doubt:
                self._expect(events, story.more, story.offset(2))
        except (EndOfConnection, ConnectionResetError, StopIteration):
            self._found.closes += 1

    def _expect(self, events: Iterator[ReceivedEvent], data: bytes, offset: str) -> None:
        event, text = next(events), ""
        while event.type == "data":
            text += event.data
            event = next(events)
            if f'"{offset}"' not in event.data:
                event = next(events)
        assert text.encode() == data, (text[:200], data[:200])
        assert f'"{offset}"' in event.data, (event, offset)


def _events(connection: RawConnection) -> Iterator[ReceivedEvent]:
    decoder = EventDecoder()
    for chunk in connection.chunks():
        yield from decoder.feed(chunk)
