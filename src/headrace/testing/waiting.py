"""Waiting for a condition, with a deadline: what tests use where they would like to sleep."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_SECS = 30.0  # generous: a machine may be busy, and a condition that holds costs nothing
_POLL_SECS = 0.01
_BACK_OFF_SECS_MAX = 0.5
_BACK_OFF_SHARE = 0.05  # of what has been waited so far: looking costs, too


def eventually(
    condition: Callable[[], bool],
    what: str,
    secs: float = DEADLINE_SECS,
    poll_secs: float = _POLL_SECS,
) -> None:
    """Return as soon as `condition` holds; AssertionError if it does not within `secs`."""
    begun = time.monotonic()
    while not condition():
        waited = time.monotonic() - begun
        assert waited < secs, f"not within {secs:g} seconds: {what}"
        time.sleep(poll_secs + min(waited * _BACK_OFF_SHARE, _BACK_OFF_SECS_MAX))
