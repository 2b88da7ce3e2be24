"""Work that is too long for one turn of the event loop, done a slice at a time.

The owner of the event loop is woken when there is work, and calls `run` between other events until
nothing is left. Without an owner, as in a test without a loop, work is done when it is added.

That is how it differs from `engine.slices`, which belongs to an event loop and schedules itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Step = Callable[[], bool]
"""Does one slice; whether there is more to do."""


class Maintenance:
    def __init__(self) -> None:
        self.wake: Callable[[], object] | None = None
        self._steps: deque[Step] = deque()

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, step: Step) -> None:
        if self.wake is None:
            while step():
                pass
            return
        self._steps.append(step)
        self.wake()

    def run(self) -> bool:
        """One slice of what waits longest for its turn; whether more is left."""
        if self._steps:
            step = self._steps.popleft()
            if step():
                self._steps.append(step)
        return bool(self._steps)
