"""From append to delivery: latency to one reader, and fan-out to many.

The reference looks for a reader's place from the beginning of the stream, so its cost rises with
every message. Both servers therefore get the same number of messages, on a fresh short stream;
warm-up happens on another one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.meter import Meter, Sample, percentile
from bench.rows.base import Budget, Metric, Row, Target
from bench.rows.live import Session

PAUSE_S = 0.002  # long enough for a long-poll reader to be waiting again
WARMUP_READERS_MAX = 100
RATE_WRITERS = 8
P50 = Metric("p50_ms", "p50 ms", higher_is_better=False)
P99 = Metric("p99_ms", "p99 ms", higher_is_better=False)
DELIVERIES = Metric("rate", "deliveries/s", higher_is_better=True)
LAST_READER_P99 = Metric("p99_ms", "p99 ms, last reader", higher_is_better=False)


def warm_up(target: Target, live: str, readers: int, seconds: float) -> None:
    deadline = time.perf_counter() + seconds
    with Session(target.port, "warm", live, min(readers, WARMUP_READERS_MAX), 1) as session:
        session.deliver(lambda _: time.perf_counter() >= deadline)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency(Row):
    """One writer, one waiting reader, one message at a time, with a pause between messages."""

    live: str

    def run(self, target: Target, budget: Budget) -> Sample:
        warm_up(target, self.live, 1, budget.warmup_s)
        with Session(target.port, "latency", self.live, readers=1, writers=1) as session:
            meter = Meter(target.pid)
            session.deliver(lambda done: done >= budget.latency_samples, PAUSE_S)
            times = [seconds * 1e3 for seconds in session.latencies]
            p50, p99 = percentile(times, 0.50), percentile(times, 0.99)
            return meter.stop(len(times), session.errors, p50_ms=p50, p99_ms=p99)


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOut(Row):
    """First one message at a time, for the time to the last reader; then eight, for the rate."""

    readers: int
    latency_messages: int
    rate_messages: int

    def run(self, target: Target, budget: Budget) -> Sample:
        warm_up(target, "sse", self.readers, budget.warmup_s)
        with Session(target.port, "one", "sse", self.readers, writers=1) as session:
            session.deliver(lambda done: done >= self.latency_messages)
            p99_ms = percentile(session.latencies, 0.99) * 1e3
        with Session(target.port, "many", "sse", self.readers, RATE_WRITERS) as session:
            meter = Meter(target.pid)
            session.deliver(lambda done: done >= self.rate_messages)
            elapsed = time.perf_counter() - meter.started
            deliveries = len(session.latencies) * self.readers
            return meter.stop(deliveries, session.errors, rate=deliveries / elapsed, p99_ms=p99_ms)


def _fan_out(readers: int, latency_messages: int, rate_messages: int) -> Row:
    return FanOut(
        name=f"fanout-{readers}",
        unit="delivery",
        metrics=(DELIVERIES, LAST_READER_P99),
        readers=readers,
        latency_messages=latency_messages,
        rate_messages=rate_messages,
    )


LATENCY: list[Row] = [
    Latency(name=f"latency-{live}", unit="message", metrics=(P50, P99), live=live)
    for live in ("long-poll", "sse")
]
FAN_OUT: list[Row] = [_fan_out(1, 300, 2000), _fan_out(100, 300, 1000), _fan_out(1000, 100, 100)]
