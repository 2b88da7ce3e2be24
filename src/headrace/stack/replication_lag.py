"""How far the sync is behind, in seconds and in rows: computed from samples of a moving end.

Nothing asks the pipelines. The end of each direction is sampled with the time; when the sync's own
position is known, the first sample behind it says since when it is behind, and the counts say by
how much. The resolution is the interval between samples.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

SAMPLES_MAX = 3600  # an hour at one a second: beyond that the age of the oldest is what we know


@dataclass(frozen=True)
class Sample:
    """Where the end was at `at` seconds, and how many rows or messages lay before it."""

    at: float
    position: int
    count: int


@dataclass(frozen=True)
class Lag:
    seconds: float
    rows: int


class Behind:
    """One direction."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def saw(self, at: float, position: int, count: int) -> None:
        """The end is at `position` now."""
        self._samples.append(Sample(at, position, count))

    def lag(self, now: float, done: int) -> Lag:
        """How far `done` is behind the last sample."""
        if not self._samples or done >= self._samples[-1].position:
            return Lag(0.0, 0)
        reached = [sample for sample in self._samples if sample.position <= done]
        first_beyond = next(sample for sample in self._samples if sample.position > done)
        counted_from = reached[-1] if reached else first_beyond
        rows = max(0, self._samples[-1].count - counted_from.count)
        return Lag(max(0.0, now - first_beyond.at), rows)
