"""What a run found: samples by row and server, medians, ratios, and the file that keeps them.

A ratio compares two samples of the same round and is above 1 where Headrace is better, whether
more is better (throughput) or less (latency, CPU, memory). The median over rounds is reported.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.machine import REPOSITORY
from bench.meter import Sample
from bench.rows.base import COMPARED, Metric, Row

RESULTS = REPOSITORY / "bench" / "results"
OURS, THEIRS = COMPARED


@dataclass(slots=True)
class RowResult:
    row: Row
    compared: tuple[str, str] = COMPARED
    samples: dict[str, list[Sample | None]] = field(default_factory=lambda: defaultdict(list))
    failures: list[str] = field(default_factory=list)

    def add(self, server: str, sample: Sample) -> None:
        self.samples[server].append(sample)

    def add_failure(self, server: str, reason: str) -> None:
        """A failed round keeps its place, so that the rounds of both servers still pair up."""
        self.samples[server].append(None)
        self.failures.append(reason)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        cpu = Metric("server_cpu_us", f"CPU µs per {self.row.unit}", higher_is_better=False)
        return (*self.row.metrics, cpu)

    def good(self, server: str) -> list[Sample]:
        return [sample for sample in self.samples[server] if sample is not None]

    def typical(self, server: str, key: str) -> float | None:
        values = [figure(sample, key) for sample in self.good(server)]
        return median(values) if values else None

    def ratios(self, metric: Metric) -> list[float]:
        ours, theirs = self.compared
        pairs = zip(self.samples[ours], self.samples[theirs], strict=False)
        return [ratio(metric, mine, other) for mine, other in pairs if mine and other]

    def to_json(self) -> dict[str, Any]:
        return {
            "row": self.row.name,
            "unit": self.row.unit,
            "figures": [self._figure_json(metric) for metric in self.metrics],
            "failures": self.failures,
            "samples": {
                server: [sample and sample.to_json() for sample in samples]
                for server, samples in self.samples.items()
            },
        }

    def _figure_json(self, metric: Metric) -> dict[str, Any]:
        ratios = self.ratios(metric)
        return {
            "figure": metric.label,
            "higher_is_better": metric.higher_is_better,
            "median": {server: self.typical(server, metric.key) for server in self.samples},
            "ratio": median(ratios) if ratios else None,
            "ratios": ratios,
        }


def figure(sample: Sample, key: str) -> float:
    if key == "server_cpu_us":
        return sample.server_cpu_us
    return sample.metrics[key]


def ratio(metric: Metric, ours: Sample, theirs: Sample) -> float:
    mine, other = figure(ours, metric.key), figure(theirs, metric.key)
    better, worse = (mine, other) if metric.higher_is_better else (other, mine)
    return better / worse if worse else float("inf")


def write(path: Path, machine: dict[str, Any], results: list[RowResult]) -> None:
    path.parent.mkdir(exist_ok=True)
    document = {"machine": machine, "rows": [result.to_json() for result in results]}
    path.write_text(json.dumps(document, indent=1) + "\n")
