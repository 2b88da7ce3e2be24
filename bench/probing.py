"""What a bench of the sync collects: probes on their way, and the steps of Spark's triggers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from uuid import uuid4

from bench.meter import percentile


@dataclass
class Probes:
    """When each probe was sent and when it was seen, by its name."""

    sent: dict[str, float] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)

    def saw(self, name: str) -> None:
        if name in self.sent and name not in self.seen:
            self.seen[name] = time.monotonic()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """A probe that is seen when the work inside is done."""
        name = str(uuid4())
        self.sent[name] = time.monotonic()
        yield
        self.saw(name)

    @property
    def is_complete(self) -> bool:
        return len(self.seen) == len(self.sent)

    def figures(self) -> dict[str, float]:
        found = [
            (self.seen[name] - at) * 1000 for name, at in self.sent.items() if name in self.seen
        ]
        if not found:
            return {"probes": 0}
        p50, p99 = (round(percentile(found, share), 1) for share in (0.5, 0.99))
        return {"p50 ms": p50, "p99 ms": p99, "probes": len(found)}


@dataclass
class Steps:
    """What each step of a trigger took, for the batches that were looked at."""

    by_batch: dict[int, dict[str, int]] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        """The median of each step; `latestOffset` is mostly waiting for something to do."""
        names = {name for steps in self.by_batch.values() for name in steps}
        taken = {n: [steps.get(n, 0) for steps in self.by_batch.values()] for n in names}
        return {f"{name} ms": median(taken[name]) for name in sorted(names)}
