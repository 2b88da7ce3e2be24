"""Every answer belongs to its request, and every request gets one, whatever fails inside.

The server is one in which calls fail after commits (`faults/sitecustomize.py`). Several clients
send pipelined requests in packets cut anywhere. Each request has a stream of its own with a size
that no other has, so an answer shows whose it is.
"""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import pytest

from headrace.testing.raw_http import EndOfConnection, RawConnection, RawResponse, request_bytes
from headrace.testing.server_process import ServerProcess

FAULTS = Path(__file__).parent / "faults"
TEXT = "text/plain"
CLIENTS = 3
ROUNDS = 40
ANSWER_SECS = 20.0  # the server itself gives up after three


@dataclass(frozen=True)
class Sent:
    """A request, and the end of the one stream that its answer may speak of."""

    method: str
    target: str
    size: int
    data: bytes

    def check(self, answer: RawResponse) -> bool:
        """Whether the server failed on it; anything else but its own answer is an error."""
        if answer.status in (500, 504):
            assert b"urn:headrace:problem:" in answer.body or self.method == "HEAD"
            return True
        if answer.status == 404:
            name = self.target.partition("?")[0].removeprefix("/v1/stream/")
            assert self.method == "HEAD" or answer.json()["stream"] in (name, name[: -len("/fork")])
            return False
        offset = answer.headers.get("stream-next-offset", f"_{self.size}")
        assert int(offset.rpartition("_")[2]) == self.size, (self, answer)
        if self.method == "GET":
            assert answer.body == b"x" * len(answer.body)
        return False


@pytest.fixture(params=["memory", "file-durable"])
def faulty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    env = {
        "DS_STORAGE__MODE": request.param,
        "DS_STORAGE__DATA_DIR": str(tmp_path / "data"),
        "DS_SERVER__LONG_POLL_TIMEOUT_SECS": "1",
        "DS_HTTP__ANSWER_TIMEOUT_SECS": "3",
        "HEADRACE_FAULTS": "7",
        "PYTHONPATH": os.pathsep.join([str(FAULTS), os.environ.get("PYTHONPATH", "")]),
    }
    server = ServerProcess(env, cwd=str(tmp_path))
    server.start()
    yield server
    if server.is_running:
        server.stop()


@pytest.mark.slow
def test_every_answer_is_that_of_its_request(faulty: ServerProcess) -> None:
    problems: list[str] = []
    clients = [_Client(faulty, number, problems) for number in range(CLIENTS)]
    threads = [Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, "\n".join([*problems[:10], *faulty.log[-60:]])
    assert faulty.is_running, "".join(faulty.log)
    assert sum(client.faults for client in clients), "no fault was met: the test tests nothing"
    assert sum(client.answers for client in clients) > CLIENTS * ROUNDS


class _Client:
    """Sends rounds of pipelined requests, each on a connection of its own."""

    def __init__(self, server: ServerProcess, number: int, problems: list[str]) -> None:
        self.server = server
        self.number = number
        self.problems = problems
        self.random = random.Random(number)
        self.answers = self.faults = 0
        self._count = 0

    def run(self) -> None:
        for number in range(ROUNDS):
            try:
                self._round()
            except Exception:
                self.problems.append(
                    f"client {self.number}, round {number}: {traceback.format_exc()}"
                )

    def _round(self) -> None:
        requests = [each for _ in range(self.random.randint(2, 8)) for each in self._requests()]
        with RawConnection(self.server.port, deadline_secs=ANSWER_SECS) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # what was answered is read below
                for packet in self._cut(b"".join(sent.data for sent in requests)):
                    connection.send(packet)
            for sent in requests:
                try:
                    answer = connection.response(head_only=sent.method == "HEAD")
                except (EndOfConnection, ConnectionResetError):
                    self.faults += 1  # an answer that cannot be sent any more ends a connection
                    return
                self.answers += 1
                self.faults += sent.check(answer)
            connection.finish_sending()
            assert connection.rest() == b"", "more answers than requests"

    def _requests(self) -> list[Sent]:
        """Create a stream, then something about it; its size says which stream it is."""
        self._count += 1
        size = 1 + self.number + CLIENTS * self._count
        path = f"/v1/stream/faults/{self.number}/{self._count}"
        sent = [self._sent("PUT", path, size, b"x" * size)]
        kind = self.random.choice(["append", "read", "head", "delete", "poll", "fork", "none"])
        if kind == "append":
            more = CLIENTS * 10_000 + size
            sent.append(self._sent("POST", path, size + more, b"x" * more))
            sent[0] = Sent(sent[0].method, path, size, sent[0].data)
        elif kind == "poll":
            sent.append(self._sent("GET", f"{path}?offset=now&live=long-poll", size))
        elif kind == "fork":
            sent.append(self._sent("PUT", f"{path}/fork", size, Stream_Forked_From=path))
        elif kind != "none":
            method = {"read": "GET", "head": "HEAD", "delete": "DELETE"}[kind]
            sent.append(self._sent(method, path, size))
        return sent

    def _sent(self, method: str, target: str, size: int, body: bytes = b"", **headers: str) -> Sent:
        data = request_bytes(method, target, body, Content_Type=TEXT, **headers)
        return Sent(method, target, size, data)

    def _cut(self, data: bytes) -> Iterator[bytes]:
        while data:
            size = self.random.choice([1, 7, 60, 500, 5000, len(data)])
            yield data[:size]
            data = data[size:]
