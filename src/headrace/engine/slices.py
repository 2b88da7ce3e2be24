"""Long work on the event loop, in slices: other work waits for one slice at most.

Work is an iterator that does a little in each step. A few pieces of work take turns; what comes
after them waits without having begun: what it works on is in memory, but nothing that it makes of
that. Work that is known to be short passes the others by.

For work that was asked for by a request or a timer. `engine.maintenance` is for the engine's own,
which has to run without an event loop, too; `http.connections.request_turns` is for connections,
not for work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from headrace.clock import monotonic

SLICE_SECS: Final = 0.005  # a request that arrives meanwhile waits this much longer
BEGUN_MAX: Final = 4
# More than this between two slices is work of others: then this pauses for twice as long as it ran.
OTHERS_SECS: Final = 0.0003
PAUSE_FACTOR: Final = 2

Work = Iterator[object]
WorkFailed = Callable[[Exception], None]


class Slices:
    def __init__(self, loop: asyncio.AbstractEventLoop, slice_secs: float = SLICE_SECS) -> None:
        self._loop = loop
        self._slice_secs = slice_secs
        self._short: deque[tuple[Work, WorkFailed]] = deque()
        self._begun: deque[tuple[Work, WorkFailed]] = deque()
        self._waiting: deque[tuple[Work, WorkFailed]] = deque()
        self._is_scheduled = False
        self._ended = 0.0  # the last slice, if the next one was to follow at once

    def __len__(self) -> int:
        """Pieces of work that are not finished."""
        return len(self._short) + len(self._begun) + len(self._waiting)

    def run(self, work: Work, failed: WorkFailed, *, is_short: bool = False) -> None:
        """Do the first slice now if nothing else is under way, and the rest in later turns.

        So work that is short is mostly done on return. `failed` gets what the work raised.
        """
        if self._begun:
            self.run_later(work, failed, is_short=is_short)
            return
        until = monotonic() + self._slice_secs
        while _has_more(work, failed):
            if monotonic() >= until:
                self._begun.append((work, failed))
                self._schedule()
                return

    def run_later(self, work: Work, failed: WorkFailed, *, is_short: bool = False) -> None:
        """The same without doing anything now: for callers that must not take long themselves."""
        (self._short if is_short else self._waiting).append((work, failed))
        self._schedule()

    def _schedule(self, pause_secs: float = 0.0) -> None:
        if self._is_scheduled:
            return
        self._is_scheduled = True
        if pause_secs:
            self._ended = 0.0
            self._loop.call_later(pause_secs, self._turn)
        else:
            self._ended = monotonic()
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        begun = monotonic()
        # The turn was asked for at once, and came late: requests ran in between.
        is_contended = self._ended > 0 and begun - self._ended > OTHERS_SECS
        try:
            self._run_until(begun + self._slice_secs)
        finally:
            # A defect in here must not keep all other work from its turn for ever.
            self._is_scheduled = False
            if len(self):
                self._schedule(PAUSE_FACTOR * (monotonic() - begun) if is_contended else 0.0)

    def _run_until(self, until: float) -> None:
        while len(self):
            self._step(self._short)
            while self._waiting and len(self._begun) < BEGUN_MAX:
                self._begun.append(self._waiting.popleft())
            self._step(self._begun)
            if monotonic() >= until:
                break

    def _step(self, queue: deque[tuple[Work, WorkFailed]]) -> None:
        """One step of the first of a queue, which goes to its end if there is more to do."""
        if queue:
            work, failed = queue.popleft()
            if _has_more(work, failed):
                queue.append((work, failed))


def _has_more(work: Work, failed: WorkFailed) -> bool:
    """One step of `work`; whether there is another."""
    try:
        next(work)
    except StopIteration:
        return False
    except Exception as error:
        failed(error)
        return False
    return True
