"""Work beside the event loop that leaves it room.

A thread that computes keeps Python's lock for milliseconds, and whoever answers requests gives it
up with every system call: a second of work beside it leaves a twentieth of the requests. So such
work is done in short slices with rests between them, in which the loop has the lock to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from headrace.clock import monotonic, sleep

SLICE_SECS: Final = 0.000_5
REST_SECS: Final = 0.001

T = TypeVar("T")


class Pace:
    """How a worker goes through its items."""

    def __init__(self, is_pressed: Callable[[], bool]) -> None:
        """`is_pressed` says whether there is no time to rest."""
        self._is_pressed = is_pressed

    def through(self, items: Iterable[T]) -> Iterator[T]:
        """The items, with rests between them."""
        begun = monotonic()
        for item in items:
            yield item
            if monotonic() - begun >= SLICE_SECS:
                if not self._is_pressed():
                    sleep(REST_SECS)
                begun = monotonic()


AT_ONCE: Final = Pace(lambda: True)
