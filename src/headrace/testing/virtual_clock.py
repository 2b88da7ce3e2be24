"""A clock that moves only when a test moves it."""

from __future__ import annotations

START_MS = 1_800_000_000_000  # 2027-01-15T08:00:00Z


class VirtualClock:
    """A `headrace.clock.Clock` that moves only by `advance`, and whose wall clock can be set."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._elapsed_ms = 0

    def now_ms(self) -> int:
        return self._now_ms + self._elapsed_ms

    def monotonic(self) -> float:
        return self._elapsed_ms / 1000

    def step(self, *, secs: int = 0, ms: int = 0) -> None:
        """The wall clock is set, forward or back; no time passes."""
        self._now_ms += secs * 1000 + ms

    def advance(self, *, secs: int = 0, ms: int = 0) -> None:
        assert min(secs, ms) >= 0, "time does not go back"
        self._elapsed_ms += secs * 1000 + ms
