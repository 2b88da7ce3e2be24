"""Translates the completion of a commit into the outcome of the command behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.errors import HeadraceError

T = TypeVar("T")


def translate(success: T, reply: Callable[[T | HeadraceError], None]) -> Callable[[object], None]:
    """A reply to a commit: the outcome for the client, unless it failed."""
    return lambda outcome: reply(outcome if isinstance(outcome, HeadraceError) else success)
