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


class Throttle:
    """How a worker goes through its items."""

    def __init__(self, is_urgent: Callable[[], bool]) -> None:
        """`is_pressed` says whether there is no time to rest."""
        self._is_urgent = is_urgent

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """The items, with rests between them."""
        begun = monotonic()
        for item in items:
            yield item
            if monotonic() - begun >= SLICE_SECS:
                if not self._is_urgent():
                    sleep(REST_SECS)
                begun = monotonic()


UNTHROTTLED: Final = Throttle(lambda: True)
