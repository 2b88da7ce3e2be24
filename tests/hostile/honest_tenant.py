"""A tenant that does nothing wrong and checks everything it is told.

It appends with a producer's sequence, reads back what it appended, asks where its stream ends, and
tails it over SSE. It knows beforehand what each answer must be, to the byte, and no two tenants
expect the same of any: an answer that was meant for another request shows, whoever's it was.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from headrace.testing.raw_http import EndOfConnection, RawConnection, RawResponse
from headrace.testing.sse_reader import EventStream
from tests.hostile.attacks import ROOT

ROUND_SECS: Final = 0.04  # of each tenant: an append, a read and a HEAD
MESSAGE_BYTES_MIN: Final = 5000  # more than what the server counts as no body at all
ANSWER_SECS_MAX: Final = 10.0
FAULTS_MAX: Final = 10  # of one tenant: more say no more


@dataclass
class Tenant:
    """Runs from `start` to `finish`; `faults` are sentences.

    `latencies_secs` are those of all requests; `tail_secs` is how long after it was sent each
    message came down the tail.
    """

    port: int
    token: str
    name: str
    run: str
    faults: list[str] = field(default_factory=list)
    latencies_secs: list[float] = field(default_factory=list)
    tail_secs: list[float] = field(default_factory=list)
    appended: int = 0

    def __post_init__(self) -> None:
        self._stream = f"{ROOT}/tenants/{self.name}/{self.run}"
        self._media_type = f"text/x-{self.name}"
        # Of a length that is this tenant's own, so that its offsets are, too.
        self._message_bytes = MESSAGE_BYTES_MIN + 7 * sum(self.name.encode())
        self._stopping = threading.Event()
        self._tailed: list[str] = []
        self._sent_at: list[float] = []
        self._last: int | None = None
        self._closed = False
        self._events: EventStream | None = None
        self._threads: list[threading.Thread] = []
        self._authorization = {"Authorization": f"Bearer {self.token}"}

    def message(self, seq: int) -> str:
        return f"<{self.name} {self.run} {seq}>".ljust(self._message_bytes, ".")

    def offset(self, count: int) -> str:
        return f"{count:016d}_{count * self._message_bytes:016d}"

    # -- life ------------------------------------------------------------------------------

    def start(self) -> None:
        self._guarded(self._start)

    def _start(self) -> None:
        with RawConnection(self.port, deadline_secs=ANSWER_SECS_MAX) as connection:
            created = self._ask(connection, "PUT", Content_Type=self._media_type)
        assert created.status == 201, created
        self._events = self._follow()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,))
            for work in (self._write, self._tail)
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Stop writing; then everything must have come down the tail, and be there to read."""
        if not self._threads:
            return  # it did not come as far as that, which is a fault already
        writer, tail = self._threads
        self._stopping.set()
        writer.join()
        if not self.faults:
            self._guarded(self._write_last)
        if not self.faults:
            tail.join(ANSWER_SECS_MAX)
        assert self._events is not None, "started"
        self._closed = True
        self._events.connection.socket.shutdown(socket.SHUT_RDWR)
        tail.join()
        self._events.connection.close()
        expected = "".join(map(self.message, range(self.appended)))
        self._compare("what was tailed", "".join(self._tailed), expected)
        self._guarded(lambda: self._compare("what is there", self._catch_up(), expected))

    def _write_last(self) -> None:
        self._last = self.appended
        with RawConnection(self.port, deadline_secs=ANSWER_SECS_MAX) as connection:
            self._round(connection, self.appended)
        self.appended += 1

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, EndOfConnection, ValueError, AssertionError) as error:
            if not self._closed:
                sentence = str(error).partition("\n")[0][:200]
                self._fault(f"a wrong answer or none: {type(error).__name__} {sentence}")

    def _fault(self, sentence: str) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(f"{self.name}: {sentence}")

    def _compare(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self._fault(f"{what}: {str(found)[:200]!r} and not {str(expected)[:200]!r}")

    # -- writing and reading back ----------------------------------------------------------

    def _write(self) -> None:
        due = time.monotonic()
        with RawConnection(self.port, deadline_secs=ANSWER_SECS_MAX) as connection:
            while not self._stopping.wait(max(0.0, due - time.monotonic())):
                self._round(connection, self.appended)
                self.appended += 1
                due += ROUND_SECS

    def _round(self, connection: RawConnection, seq: int) -> None:
        message, end = self.message(seq), self.offset(seq + 1)
        producer = {"Producer_Id": self.name, "Producer_Epoch": "0", "Producer_Seq": str(seq)}
        begun = time.monotonic()
        self._sent_at.append(begun)
        appended = self._ask(
            connection,
            "POST",
            "",
            message.encode(),
            Content_Type=self._media_type,
            **producer,
        )
        self.latencies_secs.append(time.monotonic() - begun)
        facts = (appended.status, appended.headers.get("producer-seq"), _next(appended))
        self._compare(f"append {seq}", facts, (200, str(seq), end))
        begun = time.monotonic()
        read = self._ask(connection, "GET", f"?offset={self.offset(seq)}")
        self.latencies_secs.append(time.monotonic() - begun)
        kind = read.headers.get("content-type")
        found = (read.status, kind, _next(read), read.body.decode("latin-1"))
        self._compare(f"read {seq}", found, (200, self._media_type, end, message))
        begun = time.monotonic()
        head = self._ask(connection, "HEAD")
        self.latencies_secs.append(time.monotonic() - begun)
        kind = head.headers.get("content-type")
        self._compare(f"head {seq}", (head.status, kind, _next(head)), (200, self._media_type, end))

    def _ask(
        self,
        connection: RawConnection,
        method: str,
        query: str = "",
        body: bytes = b"",
        **headers: str,
    ) -> RawResponse:
        headers |= self._authorization
        return connection.request(method, f"{self._stream}{query}", body, **headers)

    # -- following -------------------------------------------------------------------------

    def _follow(self) -> EventStream:
        connection = RawConnection(self.port, deadline_secs=ANSWER_SECS_MAX)
        target = f"{self._stream}?offset=-1&live=sse"
        try:
            events = EventStream(connection, target, **self._authorization)
        except BaseException:
            connection.close()
            raise
        connection.socket.settimeout(None)  # nothing comes for as long as nothing is appended
        return events

    def _tail(self) -> None:
        """Until the last message has come."""
        events = self._events
        assert events is not None, "started"
        received = 0
        while self._last is None or received < (self._last + 1) * self._message_bytes:
            data = events.batch().data
            if data is not None:
                self._tailed.append(data)
                received += len(data)
                whole, now = received // self._message_bytes, time.monotonic()
                self.tail_secs += [now - at for at in self._sent_at[len(self.tail_secs) : whole]]

    def _catch_up(self) -> str:
        found, offset = [], "-1"
        with RawConnection(self.port, deadline_secs=ANSWER_SECS_MAX) as connection:
            while True:
                answer = self._ask(connection, "GET", f"?offset={offset}")
                assert answer.status == 200, answer
                found.append(answer.body.decode("latin-1"))
                offset = _next(answer) or ""
                if "stream-up-to-date" in answer.headers:
                    return "".join(found)


def _next(answer: RawResponse) -> str | None:
    return answer.headers.get("stream-next-offset")
