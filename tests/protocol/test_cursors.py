"""Cursors always move past the one a client echoes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.cursors import EPOCH_MS, INTERVAL_MS, JITTER_SECS_MAX, next_cursor

MOMENTS_MS = st.integers(EPOCH_MS, EPOCH_MS + 10**13)
JITTERS_SECS = st.integers(1, JITTER_SECS_MAX)


@given(MOMENTS_MS, st.integers(0, 10**12), JITTERS_SECS)
def test_a_cursor_is_past_the_echoed_one_and_not_behind_the_clock(
    now_ms: int, echoed: int, jitter_secs: int
) -> None:
    cursor = next_cursor(now_ms, str(echoed), jitter_secs)
    assert cursor > echoed or cursor == (now_ms - EPOCH_MS) // INTERVAL_MS > echoed
    assert cursor >= (now_ms - EPOCH_MS) // INTERVAL_MS


@given(MOMENTS_MS, st.integers(0, 10**9), JITTERS_SECS)
def test_clients_in_one_interval_without_a_cursor_share_one(
    now_ms: int, later_ms: int, jitter_secs: int
) -> None:
    start_ms = now_ms - (now_ms - EPOCH_MS) % INTERVAL_MS
    same_ms = start_ms + later_ms % INTERVAL_MS
    assert next_cursor(start_ms, None, jitter_secs) == next_cursor(same_ms, None, jitter_secs)


@pytest.mark.parametrize("echoed", ["", "abc", "-1", "1.5", " 7", "٣", "9" * 17])
def test_a_cursor_that_was_not_ours_is_ignored(echoed: str) -> None:
    assert next_cursor(EPOCH_MS + 3 * INTERVAL_MS, echoed, 60) == 3
