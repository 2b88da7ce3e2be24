"""What a commit's completion is told to whoever asked for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.errors import HeadraceError

T = TypeVar("T")


def translate(success: T, reply: Callable[[T | HeadraceError], None]) -> Callable[[object], None]:
    """A reply to a commit: what the client is told, unless it failed."""
    return lambda outcome: reply(outcome if isinstance(outcome, HeadraceError) else success)
