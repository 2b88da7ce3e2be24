"""A row of the pipelines: what is measured, beside its bounds, round by round.

The samples are those of the other rows. The generator's time is here that of everything that is
not the server: Spark's driver and executor, its Python workers, and Postgres.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.machine import TICKS_PER_SECOND, HostTimes, cpu_seconds
from bench.meter import Sample
from bench.results import figure, ratio
from bench.rows.base import Metric

OURS = "headrace"
RATE = Metric("rate", "rows/s", higher_is_better=True)
CPU = Metric("cpu_us", "CPU µs per row, all processes", higher_is_better=False)
P50 = Metric("p50_ms", "ms, p50", higher_is_better=False)
P99 = Metric("p99_ms", "ms, p99", higher_is_better=False)


@dataclass(frozen=True, slots=True)
class Done:
    """What a run did, and the figures that it alone knows."""

    units: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """One thing to measure; what `prepare` does is in no figure."""

    run: Callable[[], Done]
    prepare: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class BoundedRow:
    name: str
    ours: Work
    bounds: dict[str, Work]
    metrics: tuple[Metric, ...] = (RATE, CPU)
    unit: str = "row"
    has_warmup: bool = True

    @property
    def works(self) -> dict[str, Work]:
        return {OURS: self.ours, **self.bounds}


@dataclass(slots=True)
class BoundedResult:
    row: BoundedRow
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def typical(self, name: str, metric: Metric) -> float | None:
        values = [figure(s, metric.key) for s in self.samples[name] if metric.key in s.metrics]
        return median(values) if values else None

    def ratios(self, metric: Metric) -> list[float]:
        """Ours to the bound that binds, in each round: 1 is as good as the limit."""
        rounds = zip(*self.samples.values(), strict=True)
        found = []
        for ours, *bounds in rounds:
            compared = [ratio(metric, ours, b) for b in bounds if metric.key in b.metrics]
            # CPU adds up over the parts; the rate and the delay are those of the slowest.
            found += [max(compared)] if compared else []
        return found

    def ratio(self, metric: Metric) -> float | None:
        ratios = self.ratios(metric)
        return median(ratios) if ratios else None

    def to_json(self) -> dict[str, Any]:
        return {
            "row": self.row.name,
            "unit": self.row.unit,
            "figures": [self._figure_json(metric) for metric in self.row.metrics],
            "failures": [],
            "samples": {name: [s.to_json() for s in found] for name, found in self.samples.items()},
        }

    def _figure_json(self, metric: Metric) -> dict[str, Any]:
        return {
            "figure": metric.label,
            "higher_is_better": metric.higher_is_better,
            "median": {name: self.typical(name, metric) for name in self.samples},
            "ratio": self.ratio(metric),
            "ratios": self.ratios(metric),
        }


def measure(row: BoundedRow, rounds: int, server_pid: int) -> BoundedResult:
    """Rounds of A B A B: what the machine does meanwhile happens to all of them."""
    result = BoundedResult(row, {name: [] for name in row.works})
    if row.has_warmup:
        for work in row.works.values():
            work.prepare()
            work.run()
    for _ in range(rounds):
        for name, work in row.works.items():
            work.prepare()
            result.samples[name].append(_sample(work, server_pid))
    return result


def _sample(work: Work, server_pid: int) -> Sample:
    host, server, tree = HostTimes.now(), cpu_seconds(server_pid), tree_cpu_seconds()
    began = time.perf_counter()
    done = work.run()
    seconds = time.perf_counter() - began
    server = cpu_seconds(server_pid) - server
    rest = max(tree_cpu_seconds() - tree - server, 0.0)
    now = HostTimes.now()
    total = max(now.total - host.total, 1e-9)
    counted = {"rate": done.units / seconds, "cpu_us": (server + rest) / max(done.units, 1) * 1e6}
    return Sample(
        seconds=seconds,
        units=done.units,
        errors=0,
        server_cpu_seconds=server,
        generator_cpu_seconds=rest,
        steal_share=(now.steal - host.steal) / total,
        other_share=max(now.busy - host.busy - server - rest, 0.0) / total,
        metrics=counted if not done.metrics else done.metrics,
    )


def tree_cpu_seconds() -> float:
    """User and system time of this process and all below it, those that have ended included."""
    return sum(map(sum, _tree_times().values()))


def own_cpu_seconds() -> dict[int, float]:
    """The same process by process, without what those that have ended took.

    Of some that end nobody learns what they took, so that the sum of all of them may shrink.
    """
    return {pid: sum(times[:2]) for pid, times in _tree_times().items()}


def _tree_times() -> dict[int, list[float]]:
    """Of this process and all below it: user and system time, own and of children that ended."""
    parents, spent = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        spent[pid] = [int(ticks) / TICKS_PER_SECOND for ticks in fields[11:15]]
    ours = {os.getpid()}
    for pid in sorted(parents):  # a child is rarely older than its parent, but numbers wrap
        ours |= {pid} if _is_below(pid, parents, ours) else set()
    return {pid: spent[pid] for pid in ours}


def _is_below(pid: int, parents: dict[int, int], ours: set[int]) -> bool:
    while pid in parents:
        if pid in ours:
            return True
        pid = parents[pid]
    return False
