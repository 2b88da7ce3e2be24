"""Exponential backoff with jitter: how long to wait before an attempt is repeated.

The wait after the first failure is `first`; it grows by `multiplier` with each failure in a row, up
to `longest`. It is then drawn from a range around that, so that many clients that lost one server
do not come back in step. One unit throughout: the name of the constant says which.

Every package may import it. Waiting, and the decision to give up, are the caller's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

# Beyond so many doublings a power overflows, and the longest wait holds anyway.
_DOUBLINGS_MAX: Final = 64

HALF_TO_FULL: Final = (0.5, 1.0)
"""Waits of half to all of what they grew to: the default."""
NO_JITTER: Final = (1.0, 1.0)
"""For one waiter on one machine, whose wait is printed or counted in ticks."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """`jitter` is the range of factors that a wait is drawn from."""

    first: float
    longest: float
    multiplier: float = 2.0
    jitter: tuple[float, float] = HALF_TO_FULL

    def after(self, failures: int, chance: float = 1.0) -> float:
        """The wait after this many failures in a row, from 1; `chance` is random in [0, 1)."""
        grown = self.first * self.multiplier ** min(failures - 1, _DOUBLINGS_MAX)
        low, high = self.jitter
        return min(grown, self.longest) * (low + (high - low) * chance)

    def waits(self) -> Iterator[float]:
        """The waits of one retry loop, without end."""
        return (self.after(failures, random.random()) for failures in count(1))

    @property
    def bound(self) -> float:
        """No wait is longer."""
        return self.longest * self.jitter[1]
