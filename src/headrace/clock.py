"""The only door to time: wall clock for expiry and cursors, monotonic clock for deadlines."""

from __future__ import annotations

import time
from typing import Protocol

monotonic = time.monotonic
"""Seconds on a clock that never goes back, for measuring what nobody simulates."""

sleep = time.sleep
"""For threads beside the event loop, never on it."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(monotonic)
