"""Waiting for a condition, with a deadline: what tests use where they would like to sleep."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_SECS = 30.0  # generous: a machine may be busy, and a condition that holds costs nothing
_POLL_SECS = 0.01


def eventually(condition: Callable[[], bool], what: str, secs: float = DEADLINE_SECS) -> None:
    """Return as soon as `condition` holds; AssertionError if it does not within `secs`."""
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline, f"not within {secs:g} seconds: {what}"
        time.sleep(_POLL_SECS)
