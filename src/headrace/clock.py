"""The only door to time.

The wall clock is for what is a time of day: expires-at, dates, cursors, timestamps. It may be set,
forward or back, at any moment. What lasts so and so long (sliding TTLs, leases, deadlines) follows
the monotonic clock, or `SteadyClock`, which reads like the former and runs like the latter.
"""

from __future__ import annotations

import time
from typing import Protocol

monotonic = time.monotonic
"""Seconds on a clock that never goes back, for measurements that tests do not simulate."""

thread_cpu = time.thread_time
"""Seconds that the calling thread has spent on a processor."""

sleep = time.sleep
"""For worker threads, never on the event loop."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        ...


class SteadyClock:
    """The wall clock as it was when this was made, and from then on as time passes: never set."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        # Rounded once, in `now_ms`: rounded here as well, it would be a millisecond ahead of the
        # wall clock at times, and a lease of a minute would seem to last longer.
        self._began_ms = clock.now_ms() - clock.monotonic() * 1000

    def now_ms(self) -> int:
        return int(self._began_ms + self._monotonic() * 1000)


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(monotonic)
