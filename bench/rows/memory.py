"""What ten thousand small streams add to the server's resident memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.machine import resident_bytes
from bench.meter import Meter, Sample
from bench.rows.base import Budget, Metric, Row, Target
from bench.sockets import Client
from bench.wire import OCTETS, append, create

BODY = b"x" * 256
WARMUP_STREAMS = 100
SETTLE_S = 1.0
ADDED = Metric("rss_mib", "MiB added", higher_is_better=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Row):
    streams: int

    def run(self, target: Target, budget: Budget) -> Sample:
        client = Client(target.port)
        client.expect_all(_streams("warm", WARMUP_STREAMS))
        time.sleep(SETTLE_S)
        before = resident_bytes(target.pid)
        meter = Meter(target.pid)
        client.expect_all(_streams("held", self.streams))
        time.sleep(SETTLE_S)
        added = resident_bytes(target.pid) - before
        client.close()
        return meter.stop(self.streams, 0, rss_mib=added / 2**20)


def _streams(prefix: str, count: int) -> Iterator[bytes]:
    for number in range(count):
        yield create(f"{prefix}-{number}", OCTETS)
        yield append(f"{prefix}-{number}", OCTETS, BODY)


MEMORY: list[Row] = [
    Memory(name="memory-10000", unit="stream", metrics=(ADDED,), streams=10_000),
]
