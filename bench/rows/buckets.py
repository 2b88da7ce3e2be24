"""Buckets: starting from a snapshot beside reading everything, and one page of a large listing.

The reference server has neither, so these rows have no ratio: `bootstrap-200` and `catchup-200`
are to be read together. Both bring 200 clients to the tail of one history; the first from a
snapshot that stands for nine tenths of it.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.meter import Meter, Sample
from bench.rows.base import Budget, Metric, Row, Target
from bench.sockets import Client, Pool, send_request
from bench.wire import OCTETS, Response, WireError, request

BUCKET = "/bench"
STREAM = f"{BUCKET}/history"
MESSAGE = b"x" * 256
BATCHES = 20_000
FOLLOWING = 2_000
SNAPSHOT = b"s" * 64 * 1024
LISTED_STREAMS = 100_000
PAGE = 100
RECV_BYTES = 2**20
SILENCE_S_MAX = 60.0
CLIENTS = Metric("clients_s", "clients/s", higher_is_better=True)
PAGES = Metric("pages_s", "pages/s", higher_is_better=True)
OURS = ("headrace",)


def make_history(target: Target, *, snapshot: bool) -> None:
    client = Client(target.port)
    client.expect(request("PUT", BUCKET, {}))
    client.expect(request("PUT", STREAM, {"Content-Type": OCTETS}))
    for number in range(BATCHES):
        answer = client.expect(request("POST", STREAM, {"Content-Type": OCTETS}, MESSAGE))
        if snapshot and number == BATCHES - FOLLOWING - 1:
            offset = answer.headers["stream-next-offset"]
            client.expect(request("PUT", f"{STREAM}/snapshot/{offset}", {}, SNAPSHOT))
    client.close()


class Lane:
    """One client: asks, and asks on, until it is at the tail. It connects anew if it must."""

    def __init__(self, pool: Pool, first: str, bytes_min: int) -> None:
        self._pool = pool
        self._first = first
        self._bytes_min = bytes_min
        self._sock: socket.socket | None = None
        self._received = 0
        self._response = Response()
        self.errors = 0

    def begin(self) -> int:
        """Ask from the beginning; the descriptor to wait on."""
        self._received = 0
        return self._ask(self._first)

    def _ask(self, target: str) -> int:
        if self._sock is None:
            self._sock = self._pool.open()
        self._response = Response()
        send_request(self._sock, request("GET", target, {}))
        return self._sock.fileno()

    def receive(self, data: memoryview) -> bool:
        """True once this client is at the tail, or has failed."""
        if not self._response.feed(data):
            return False
        answer = self._response
        self._received += answer.body_bytes
        if answer.headers.get("connection") == "close" and self._sock is not None:
            self._pool.drop(self._sock.fileno())
            self._sock = None
        if answer.ok and answer.headers.get("stream-up-to-date") != "true":
            self._ask(f"{STREAM}?offset={answer.headers['stream-next-offset']}")
            return False
        self.errors += not answer.ok or self._received < self._bytes_min
        return True

    def receive_from(self, buffer: memoryview) -> bool:
        assert self._sock is not None, "a lane that is waited for is connected"
        return self.receive(buffer[: self._sock.recv_into(buffer)])


def bring_all(pool: Pool, lanes: list[Lane], buffer: memoryview) -> None:
    waiting = {lane.begin(): lane for lane in lanes}
    while waiting:
        events = pool.epoll.poll(SILENCE_S_MAX)
        if not events:
            raise WireError(f"nothing arrived for {SILENCE_S_MAX} s")
        for fd, _ in events:
            if waiting[fd].receive_from(buffer):
                del waiting[fd]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning(Row):
    """Clients that begin at once, and each get to the tail."""

    clients: int
    snapshot: bool

    def run(self, target: Target, budget: Budget) -> Sample:
        make_history(target, snapshot=self.snapshot)
        first = f"{STREAM}/bootstrap" if self.snapshot else f"{STREAM}?offset=-1"
        messages = FOLLOWING if self.snapshot else BATCHES
        pool = Pool(target.port)
        lanes = [Lane(pool, first, messages * len(MESSAGE)) for _ in range(self.clients)]
        buffer = memoryview(bytearray(RECV_BYTES))
        bring_all(pool, lanes[:1], buffer)
        meter = Meter(target.pid)
        passes = 0
        while not passes or time.perf_counter() < meter.started + budget.seconds:
            bring_all(pool, lanes, buffer)
            passes += 1
        elapsed = time.perf_counter() - meter.started
        errors = sum(lane.errors for lane in lanes)
        complete = passes * self.clients - errors
        sample = meter.stop(complete, errors, clients_s=complete / elapsed)
        pool.close()
        return sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Row):
    """One client reads pages from anywhere in a large bucket."""

    def run(self, target: Target, budget: Budget) -> Sample:
        client = Client(target.port)
        client.expect(request("PUT", BUCKET, {}))
        client.expect_all(
            request("PUT", f"{BUCKET}/{number:06d}", {}) for number in range(LISTED_STREAMS)
        )
        targets = page_targets(random.Random(0))
        client.expect(request("GET", next(targets), {}))
        meter = Meter(target.pid)
        pages = 0
        while time.perf_counter() < meter.started + budget.seconds:
            client.expect(request("GET", next(targets), {}))
            pages += 1
        elapsed = time.perf_counter() - meter.started
        sample = meter.stop(pages, 0, pages_s=pages / elapsed)
        client.close()
        return sample


def page_targets(chance: random.Random) -> Iterator[str]:
    while True:
        after = chance.randrange(LISTED_STREAMS - PAGE)
        yield f"{BUCKET}/streams?after={after:06d}&limit={PAGE}"


BUCKETS: list[Row] = [
    Beginning(
        name="bootstrap-200",
        unit="client",
        metrics=(CLIENTS,),
        servers=OURS,
        clients=200,
        snapshot=True,
    ),
    Beginning(
        name="catchup-200",
        unit="client",
        metrics=(CLIENTS,),
        servers=OURS,
        clients=200,
        snapshot=False,
    ),
    Listing(name="listing-100000", unit="page", metrics=(PAGES,), servers=OURS),
]
