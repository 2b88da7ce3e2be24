"""Cursors: the interval numbers that keep caches from serving one live answer for ever."""

from __future__ import annotations

from typing import Final

INTERVAL_MS: Final = 20_000
EPOCH_MS: Final = 1_728_432_000_000  # 2024-10-09T00:00:00Z, the protocol's default
JITTER_SECS_MAX: Final = 3600


def next_cursor(now_ms: int, echoed: str | None, jitter_secs: int) -> int:
    """The cursor for a live answer, always past the one the client echoed.

    `jitter_secs` is drawn by the caller from 1 to JITTER_SECS_MAX. A cursor that is not a
    decimal number was not ours and is ignored.
    """
    current = (now_ms - EPOCH_MS) // INTERVAL_MS
    if not echoed or not (echoed.isascii() and echoed.isdigit()) or len(echoed) > 16:
        return current
    client = int(echoed)
    if client < current:
        return current
    return client + max(1, jitter_secs * 1000 // INTERVAL_MS)
