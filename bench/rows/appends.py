"""Appends per second: a closed loop of connections, each waiting for its answer.

The inner loop is the benchmark's own ceiling. It parses the first answer in full, remembers how
such an answer begins and ends, and sends every answer that looks different through the parser.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.meter import Meter, Sample
from bench.rows.base import COMPARED, Budget, Metric, Row, Target
from bench.sockets import Client, Pool, send_request
from bench.wire import OCTETS, SEPARATOR, Response, WireError, append, create, request, stream_path

BODY = b"x" * 256
EMPTY_CHUNKED = SEPARATOR + b"0" + SEPARATOR
RECV_BYTES = 4096  # an append's answer has no body and 400 to 900 bytes of headers
EVENTS_MAX = 512
PRODUCERS_PER_CONNECTION = 16  # 64 connections: 1,024 producers
RATE = Metric("rate", "appends/s", higher_is_better=True)

Requests = Iterator[bytes]
RequestsOf = Callable[[int, list[str]], Requests]


def plain(_connection: int, names: list[str]) -> Requests:
    return itertools.cycle([append(name, OCTETS, BODY) for name in names])


def produced(connection: int, names: list[str]) -> Requests:
    """Each connection is one producer; its sequence rises by one on each of its streams."""
    return _rising([_around_sequence(f"bench-{connection}", name) for name in names])


def crowded(connection: int, names: list[str]) -> Requests:
    """Each connection speaks for many producers in turn, as a backend does for its users."""
    speakers = [f"bench-{connection}-{number}" for number in range(PRODUCERS_PER_CONNECTION)]
    return _rising([_around_sequence(speaker, name) for name in names for speaker in speakers])


def _rising(halves: list[tuple[bytes, bytes]]) -> Requests:
    for sequence in itertools.count():
        digits = b"%d" % sequence
        for before, after in halves:
            yield before + digits + after


def _around_sequence(producer: str, name: str) -> tuple[bytes, bytes]:
    headers = {
        "Content-Type": OCTETS,
        "Producer-Id": producer,
        "Producer-Epoch": "0",
        "Producer-Seq": "@",
    }
    before, after = request("POST", stream_path(name), headers, BODY).split(b"@")
    return before, after


@dataclass(frozen=True, slots=True, kw_only=True)
class Appends(Row):
    connections: int
    streams: int
    requests_of: RequestsOf
    # With producer headers 200 is an append and 204 a duplicate: only the expected status counts.
    status: int

    def run(self, target: Target, budget: Budget) -> Sample:
        names = [f"append-{number}" for number in range(self.streams)]
        client = Client(target.port)
        client.expect_all(create(name, OCTETS) for name in names)
        client.close()
        loop = ClosedLoop(target.port, self.status)
        for connection in range(self.connections):
            share = names[connection :: self.connections] or names
            loop.add(self.requests_of(connection, share))
        loop.begin()
        loop.run_until(time.perf_counter() + budget.warmup_s)
        done, failed = loop.done, loop.failed
        meter = Meter(target.pid)
        loop.run_until(meter.started + budget.seconds)
        done, failed = loop.done - done, loop.failed - failed
        elapsed = time.perf_counter() - meter.started
        sample = meter.stop(done, failed, rate=done / elapsed)
        loop.close()
        return sample


class ClosedLoop:
    """All connections under one epoll; each sends its next request when the last is answered."""

    def __init__(self, port: int, status: int) -> None:
        self.done = 0
        self.failed = 0
        self._pool = Pool(port)
        self._status = status
        self._lanes: dict[int, tuple[Callable[[int], bytes], Callable[[bytes], int], Requests]] = {}
        self._partial: dict[int, Response] = {}
        self._start = b"HTTP/1.1 %d" % status
        self._end: bytes | None = None

    def add(self, requests: Requests) -> None:
        sock = self._pool.open()
        self._lanes[sock.fileno()] = (sock.recv, sock.send, requests)

    def begin(self) -> None:
        for fd, (_, _, requests) in self._lanes.items():
            send_request(self._pool.by_fd[fd], next(requests))

    def run_until(self, deadline: float) -> None:
        poll, lanes, clock = self._pool.epoll.poll, self._lanes, time.perf_counter
        start, start_bytes = self._start, len(self._start)
        partial = self._partial
        done = 0
        while clock() < deadline:
            end = self._end
            for fd, _ in poll(1.0, EVENTS_MAX):
                recv, send, requests = lanes[fd]
                try:
                    data = recv(RECV_BYTES)
                except ConnectionError:
                    data = b""
                if (
                    end is not None
                    and data[:start_bytes] == start
                    and data.endswith(end)
                    and fd not in partial
                ):
                    done += 1
                    send(next(requests))
                else:
                    self._answer(fd, data)
        self.done += done

    def _answer(self, fd: int, data: bytes) -> None:
        """The careful path: first answers, refusals, split answers, lost connections."""
        response = self._partial.setdefault(fd, Response())
        try:
            if not response.feed(memoryview(data)):
                return
        except WireError:
            self._reopen(fd)
            return
        del self._partial[fd]
        if response.status != self._status:
            self.failed += 1
        else:
            self.done += 1
            self._learn(response)
        send_request(self._pool.by_fd[fd], next(self._lanes[fd][2]))

    def _learn(self, response: Response) -> None:
        """How an answer without a body ends: with its headers, or with an empty last chunk."""
        if not response.body_bytes:
            self._end = EMPTY_CHUNKED if response.chunked else SEPARATOR

    def _reopen(self, fd: int) -> None:
        self.failed += 1
        self._partial.pop(fd, None)
        _, _, requests = self._lanes.pop(fd)
        self._pool.drop(fd)
        sock = self._pool.open()
        self._lanes[sock.fileno()] = (sock.recv, sock.send, requests)
        send_request(sock, next(requests))

    def close(self) -> None:
        self._pool.close()


def _row(
    kind: str,
    requests_of: RequestsOf,
    status: int,
    connections: int,
    streams: int,
    servers: tuple[str, ...] = COMPARED,
) -> Row:
    return Appends(
        name=f"{kind}-c{connections}-s{streams}",
        unit="append",
        metrics=(RATE,),
        servers=servers,
        connections=connections,
        streams=streams,
        requests_of=requests_of,
        status=status,
    )


BARE: list[Row] = [_row("bare", plain, 204, c, 1, servers=("bare",)) for c in (1, 64, 256)]
PLAIN: list[Row] = [_row("append", plain, 204, c, s) for s in (1, 1000) for c in (1, 64, 256)]
PRODUCED: list[Row] = [
    *(_row("producer", produced, 200, 64, s) for s in (1, 1000)),
    _row("crowd", crowded, 200, 64, 1),
]
