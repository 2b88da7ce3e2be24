"""Work on a thread that leaves the event loop its share of the interpreter.

The event loop releases the GIL on every system call, and a thread that computes takes it for
milliseconds: a CPU-bound thread cuts throughput to 5 % while it runs. Such work is therefore done
in slices of half a millisecond, with a sleep after each in which the loop has the GIL to itself.
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
        """`is_urgent` returns whether to skip the pauses."""
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
