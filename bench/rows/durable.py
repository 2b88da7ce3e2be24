"""Rows for servers that store: appends over few and many streams, replay of a closed stream."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace

from bench.meter import Meter, Sample
from bench.rows.appends import RATE, Appends, ClosedLoop, plain
from bench.rows.base import Budget, Metric, Row, Target
from bench.rows.replay import RECV_BYTES, STREAM, THROUGHPUT, Lane, replay_once
from bench.sockets import Client, Pool
from bench.wire import OCTETS, append, create, request, stream_path

CONNECTIONS = 64
REPLAY_BYTES = 256 * 2**20
REPLAY_MESSAGE = b"x" * (256 * 1024)
CHECKPOINT_S = 3.0  # time for what was appended to get from the journal into stream files
MANY = 10_000  # more streams than this are made by all connections at once

OURS = ("file-durable", "acid")
WITH_REFERENCE = ("file-durable", "reference-file", "acid")
BATCH = Metric("batch", "appends per sync", higher_is_better=True)
SYNC = Metric("sync_ms", "ms per sync", higher_is_better=False)
CPU = Metric("cpu_s_per_gib", "CPU s per GiB", higher_is_better=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableAppends(Appends):
    """Appends, with what the server says about its batches and syncs."""

    def run(self, target: Target, budget: Budget) -> Sample:
        names = [f"append-{number}" for number in range(self.streams)]
        create_all(target.port, names)
        loop = ClosedLoop(target.port, self.status)
        for connection in range(self.connections):
            loop.add(self.requests_of(connection, names[connection :: self.connections] or names))
        loop.begin()
        loop.run_until(time.perf_counter() + budget.warmup_s)
        before = _commits(target.port)
        done, failed = loop.done, loop.failed
        meter = Meter(target.pid)
        loop.run_until(meter.started + budget.seconds)
        elapsed = time.perf_counter() - meter.started
        done, failed = loop.done - done, loop.failed - failed
        batches, changes, seconds = (
            after - earlier for after, earlier in zip(_commits(target.port), before, strict=True)
        )
        sample = meter.stop(
            done,
            failed,
            rate=done / elapsed,
            batch=changes / batches if batches else 0.0,
            sync_ms=1000 * seconds / batches if batches else 0.0,
        )
        loop.close()
        return sample


def create_all(port: int, names: list[str]) -> None:
    if len(names) <= MANY:
        client = Client(port)
        client.expect_all(create(name, OCTETS) for name in names)
        client.close()
        return
    loop = ClosedLoop(port, 201)
    for connection in range(CONNECTIONS):
        mine = (create(name, OCTETS) for name in names[connection::CONNECTIONS])
        # Whoever is through first asks again for a stream that is there: 200, and not counted.
        loop.add(itertools.chain(mine, itertools.repeat(create(names[0], OCTETS))))
    loop.begin()
    while loop.done < len(names):
        loop.run_until(time.perf_counter() + 0.1)
    loop.close()


def _commits(port: int) -> tuple[float, float, float]:
    """Batches, changes and seconds of commits so far; zeros from a server that does not say."""
    client = Client(port)
    answer = client.call(request("GET", "/metrics", {}))
    client.close()
    values = {}
    for line in answer.body.decode(errors="replace").splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("headrace_commit_"):
            values[name.removeprefix("headrace_commit_")] = float(value)
    return values.get("batches", 0.0), values.get("changes", 0.0), values.get("seconds", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableReplay(Row):
    """One reader follows a closed stream from its beginning to its end, again and again."""

    stream_bytes: int = REPLAY_BYTES

    def run(self, target: Target, budget: Budget) -> Sample:
        self._fill(target.port)
        pool = Pool(target.port)
        lane = Lane(pool, self.stream_bytes)
        lanes = {lane.fd: lane}
        buffer = memoryview(bytearray(RECV_BYTES))
        replay_once(pool, lanes, buffer)
        lane.errors = passes = 0
        meter = Meter(target.pid)
        while not passes or time.perf_counter() < meter.started + budget.seconds:
            replay_once(pool, lanes, buffer)
            passes += 1
        elapsed = time.perf_counter() - meter.started
        whole = passes - lane.errors
        sample = meter.stop(
            whole * self.stream_bytes // 2**20,
            lane.errors,
            mb_s=whole * self.stream_bytes / 1e6 / elapsed,
        )
        gib = max(whole * self.stream_bytes / 2**30, 1e-9)
        pool.close()
        return replace(sample, metrics={**sample.metrics, CPU.key: sample.server_cpu_seconds / gib})

    def _fill(self, port: int) -> None:
        client = Client(port)
        client.expect(create(STREAM, OCTETS))
        message = append(STREAM, OCTETS, REPLAY_MESSAGE)
        client.expect_all(message for _ in range(self.stream_bytes // len(REPLAY_MESSAGE)))
        client.expect(request("POST", stream_path(STREAM), {"Stream-Closed": "true"}))
        client.close()
        time.sleep(CHECKPOINT_S)


def _appends(streams: int, servers: tuple[str, ...]) -> Row:
    return DurableAppends(
        name=f"durable-append-c{CONNECTIONS}-s{streams}",
        unit="append",
        metrics=(RATE, BATCH, SYNC),
        servers=servers,
        connections=CONNECTIONS,
        streams=streams,
        requests_of=plain,
        status=204,
    )


DURABLE: dict[str, Row] = {
    row.name: row
    for row in [
        _appends(1, WITH_REFERENCE),
        _appends(1000, WITH_REFERENCE),
        _appends(10, OURS),
        _appends(100_000, OURS),
        DurableReplay(
            name="durable-replay",
            unit="MiB",
            metrics=(THROUGHPUT, CPU),
            servers=("file-durable", "reference-file", "acid", "sendfile"),
        ),
    ]
}
