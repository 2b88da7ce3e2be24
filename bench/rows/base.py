"""What a row is: a name, what it counts, what it reports, and how to run it on one server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from bench.meter import Sample

COMPARED = ("headrace", "reference")


@dataclass(frozen=True, slots=True)
class Target:
    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to measure, and how often where a row is not measured by time."""

    seconds: float
    warmup_s: float
    latency_samples: int


@dataclass(frozen=True, slots=True)
class Metric:
    key: str
    label: str
    higher_is_better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(ABC):
    name: str
    unit: str  # what is counted, and what the CPU figures are per
    metrics: tuple[Metric, ...]
    servers: tuple[str, ...] = COMPARED

    @abstractmethod
    def run(self, target: Target, budget: Budget) -> Sample:
        """Set up, warm up, measure. Runs in the generator process against a fresh server."""
