"""Catch-up: readers that start at the beginning of a long stream and follow it to its end."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.meter import Meter, Sample
from bench.rows.base import Budget, Metric, Row, Target
from bench.sockets import Client, Pool, send_request
from bench.wire import OCTETS, Response, WireError, append, create, read

STREAM = "replay"
MESSAGE = b"x" * 4096
STREAM_BYTES = 64 * 2**20
RECV_BYTES = 2**20
SILENCE_S_MAX = 60.0
THROUGHPUT = Metric("mb_s", "MB/s", higher_is_better=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay(Row):
    readers: int

    def run(self, target: Target, budget: Budget) -> Sample:
        client = Client(target.port)
        client.expect(create(STREAM, OCTETS))
        client.expect_all(
            append(STREAM, OCTETS, MESSAGE) for _ in range(STREAM_BYTES // len(MESSAGE))
        )
        client.close()
        pool = Pool(target.port)
        lanes = {lane.fd: lane for lane in (Lane(pool) for _ in range(self.readers))}
        buffer = memoryview(bytearray(RECV_BYTES))
        replay_once(pool, {fd: lanes[fd] for fd in list(lanes)[:1]}, buffer)
        for lane in lanes.values():
            lane.errors = 0
        meter = Meter(target.pid)
        passes = 0
        while not passes or time.perf_counter() < meter.started + budget.seconds:
            replay_once(pool, lanes, buffer)
            passes += 1
        elapsed = time.perf_counter() - meter.started
        errors = sum(lane.errors for lane in lanes.values())
        complete = passes * self.readers - errors
        sample = meter.stop(
            complete * STREAM_BYTES // 2**20, errors, mb_s=complete * STREAM_BYTES / 1e6 / elapsed
        )
        pool.close()
        return sample


class Lane:
    """One reader. Our server answers in chunks, the reference at once: it follows the headers."""

    def __init__(self, pool: Pool, stream_bytes: int = STREAM_BYTES) -> None:
        self._stream_bytes = stream_bytes
        self.sock = pool.open()
        self.fd = self.sock.fileno()
        self.errors = 0
        self._total = 0
        self._response = Response()

    def begin(self) -> None:
        self._total = 0
        self._ask("-1")

    def _ask(self, offset: str) -> None:
        self._response = Response()
        send_request(self.sock, read(STREAM, offset))

    def receive(self, data: memoryview) -> bool:
        """True once this reader is at the end of the stream, or has failed."""
        if not self._response.feed(data):
            return False
        answer = self._response
        self._total += answer.body_bytes
        if answer.ok and answer.headers.get("stream-up-to-date") != "true":
            self._ask(answer.headers["stream-next-offset"])
            return False
        self.errors += not answer.ok or self._total != self._stream_bytes
        return True


def replay_once(pool: Pool, lanes: dict[int, Lane], buffer: memoryview) -> None:
    for lane in lanes.values():
        lane.begin()
    unfinished = len(lanes)
    while unfinished:
        events = pool.epoll.poll(SILENCE_S_MAX)
        if not events:
            raise WireError(f"nothing arrived for {SILENCE_S_MAX} s")
        for fd, _ in events:
            lane = lanes[fd]
            unfinished -= lane.receive(buffer[: lane.sock.recv_into(buffer)])


REPLAY: list[Row] = [
    Replay(name=f"replay-{readers}", unit="MiB", metrics=(THROUGHPUT,), readers=readers)
    for readers in (1, 50)
]
