"""A stream with live readers: messages go in, and each is timed until its last reader has it.

Every message is text that ends in a mark which occurs nowhere else in an SSE event or a
long-poll answer. One byte cannot be split between two reads, so counting marks counts messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from bench.sockets import Client, Pool, send_request
from bench.wire import TEXT, Response, WireError, append, create, read

MARK = b"~"
MESSAGE = b"x" * 255 + MARK
SILENCE_S_MAX = 10.0
RECV_BYTES = 64 * 1024
EVENTS_MAX = 1024


class Reader(Protocol):
    ready: bool

    def receive(self, data: bytes) -> int:
        """How many messages these bytes complete."""


class SseReader:
    def __init__(self, pool: Pool, stream: str) -> None:
        self._sock = pool.open()
        self.fd = self._sock.fileno()
        self.ready = False
        send_request(self._sock, read(stream, "-1", "sse"))

    def receive(self, data: bytes) -> int:
        if not self.ready:
            self._check_status(data)
        return data.count(MARK)

    def _check_status(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 200"):
            raise WireError(f"an SSE request got {data[:80]!r}")
        self.ready = True


class LongPollReader:
    """Asks again from where the last answer ended, as soon as it is complete."""

    def __init__(self, pool: Pool, stream: str) -> None:
        self._stream = stream
        self._sock = pool.open()
        self.fd = self._sock.fileno()
        self.ready = True
        self._response = Response(keep_body=True)
        send_request(self._sock, read(stream, "-1", "long-poll"))

    def receive(self, data: bytes) -> int:
        if not self._response.feed(memoryview(data)):
            return 0
        answer, self._response = self._response, Response(keep_body=True)
        if not answer.ok:
            raise WireError(f"a long-poll got {answer.status}")
        cursor = answer.headers.get("stream-cursor", "")
        live = f"long-poll&cursor={cursor}" if cursor else "long-poll"
        send_request(self._sock, read(self._stream, answer.headers["stream-next-offset"], live))
        return answer.body.count(MARK)


class Writer:
    """One connection that appends when told to, if its last append was answered."""

    def __init__(self, pool: Pool, stream: str) -> None:
        self._sock = pool.open()
        self.fd = self._sock.fileno()
        self.idle = True
        self.errors = 0
        self._request = append(stream, TEXT, MESSAGE)
        self._response = Response()

    def send(self) -> None:
        self.idle = False
        send_request(self._sock, self._request)

    def receive(self, data: bytes) -> None:
        if self._response.feed(memoryview(data)):
            self.errors += not self._response.ok
            self._response = Response()
            self.idle = True


READERS: dict[str, Callable[[Pool, str], SseReader | LongPollReader]] = {
    "sse": SseReader,
    "long-poll": LongPollReader,
}


class Session:
    """Readers and writers of one fresh stream under one epoll."""

    def __init__(self, port: int, stream: str, live: str, readers: int, writers: int) -> None:
        client = Client(port)
        client.expect(create(stream, TEXT))
        client.close()
        self._pool = Pool(port)
        self._writers = {w.fd: w for w in (Writer(self._pool, stream) for _ in range(writers))}
        self._readers: dict[int, Reader] = {}
        self._seen: dict[int, int] = {}  # by reader: messages received
        self._sent_at: list[float] = []  # by message
        self._waiting: list[int] = []  # by message: readers that do not have it yet
        self.latencies: list[float] = []  # by message: append sent until last reader has it
        for _ in range(readers):
            reader = READERS[live](self._pool, stream)
            self._readers[reader.fd] = reader
            self._seen[reader.fd] = 0
        while not all(reader.ready for reader in self._readers.values()):
            self._pump()

    @property
    def errors(self) -> int:
        return sum(writer.errors for writer in self._writers.values())

    def deliver(self, enough: Callable[[int], bool], pause_s: float = 0.0) -> None:
        """Append until `enough(messages delivered)`, at most one message per writer under way."""
        while not enough(len(self.latencies)):
            if pause_s and not self._unfinished:
                time.sleep(pause_s)
            self._send()
            self._pump()
        while self._unfinished:
            self._pump()

    @property
    def _unfinished(self) -> bool:
        if len(self.latencies) < len(self._sent_at):
            return True
        return not all(writer.idle for writer in self._writers.values())

    def _send(self) -> None:
        """A writer's next append waits for its last answer and for the slowest reader."""
        room = len(self._writers) - (len(self._sent_at) - len(self.latencies))
        for writer in self._writers.values():
            if room > 0 and writer.idle:
                self._sent_at.append(time.perf_counter())
                self._waiting.append(len(self._readers))
                writer.send()
                room -= 1

    def _pump(self) -> None:
        events = self._pool.epoll.poll(SILENCE_S_MAX, EVENTS_MAX)
        if not events:
            raise WireError(f"nothing arrived for {SILENCE_S_MAX} s")
        by_fd, readers = self._pool.by_fd, self._readers
        for fd, _ in events:
            data = by_fd[fd].recv(RECV_BYTES)
            reader = readers.get(fd)
            if not data:
                raise WireError("a live connection was closed")
            if reader is None:
                self._writers[fd].receive(data)
            elif messages := reader.receive(data):
                self._delivered(fd, messages)

    def _delivered(self, fd: int, messages: int) -> None:
        now = time.perf_counter()
        first = self._seen[fd]
        self._seen[fd] = first + messages
        for number in range(first, first + messages):
            self._waiting[number] -= 1
            if not self._waiting[number]:
                self.latencies.append(now - self._sent_at[number])

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()
