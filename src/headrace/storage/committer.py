"""Group commit: while one batch is being made durable, the next one gathers.

One thread writes; the event loop never waits for it, nor it for the loop: it goes on with what has
gathered meanwhile before the loop hears of the last batch. Everything in a batch is answered by
one completion call, in the order it came. After a failure nothing more is written, not even what
had gathered before the loop heard of it: what was decided on a batch that may be lost cannot be
taken back piece by piece, and a sync that follows a failed one proves nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.clock import monotonic
from headrace.errors import CommitFailed, HeadraceError, StoredBytesUnreadable
from headrace.storage.base import Commits, Entry, Failed
from headrace.storage.lane import LaneMaker, ThreadLane

logger = logging.getLogger(__name__)

W = TypeVar("W")
Committed = Callable[[Sequence[Entry]], None]


def _nothing() -> None:
    """Nobody waits."""


class _Settling(NamedTuple):
    """Someone who waits for what was added before."""

    done: Callable[[], None]
    failed: Failed


class _Written(NamedTuple):
    """A batch that is durable: who waits for it, and whether the thread went on to the next."""

    waiting: list[Entry | _Settling]
    goes_on: bool


class Committer(Generic[W]):
    """Hands what `add` collects to `write`, on a thread of its own, batch by batch."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        write: Callable[[list[W]], None],
        lanes: LaneMaker = ThreadLane,
    ) -> None:
        self._loop = loop
        self._write = write
        # The loop puts in at one end what the thread takes out at the other, each with whoever
        # waits for it.
        self._gathered: deque[tuple[W | None, Entry | _Settling | None]] = deque()
        self._writing: list[Entry | _Settling] = []
        self._written: deque[_Written] = deque()
        self._busy = False
        self._scheduled = False
        self._telling = False
        self.gathering = 1
        """The number of the batch that takes what was added last, or of a later one."""
        self.finished = 0
        """The number of the last batch that is durable."""
        self._lane = lanes(loop, name)
        self._failure: asyncio.Future[None] = loop.create_future()
        self.commits = Commits()
        self.is_failed = False
        self.is_poisoned = False  # the thread's own word for it
        self._is_closed = False

    def start(self, committed: Committed, failed: Committed) -> None:
        self._committed = committed
        self._failed = failed

    async def failed(self) -> None:
        """Returns never, or raises what writing died of."""
        await asyncio.shield(self._failure)

    @property
    def is_idle(self) -> bool:
        """Whether everything that was added is durable, and everybody has been told."""
        return not (self._busy or self._gathered or self._telling)

    def add(self, work: W, entry: Entry | None) -> None:
        if self.is_failed:
            self._failed([entry] if entry is not None else [])
            return
        self._gathered.append((work, entry))
        self._schedule()

    def settle(self, done: Callable[[], None], failed: Failed) -> None:
        """Call back when everything added so far is durable, or `failed` when it never will be."""
        if self.is_failed:
            failed(CommitFailed())
        elif self.is_idle:
            done()
        else:
            self._gathered.append((None, _Settling(done, failed)))
            self._schedule()

    def run(self, work: Callable[[], None], done: Callable[[], None] = _nothing) -> None:
        """Do something else on the writing thread, between two batches; then call `done`."""
        if self.is_failed:
            return
        self._lane.do(lambda: self._guarded(work), lambda error: self._ran(error, done))

    def _ran(self, error: BaseException | None, done: Callable[[], None]) -> None:
        if error is None:
            done()
        else:
            self.fail(error)

    # -- on the thread ---------------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> bool:
        """The first failure is the last thing that happens."""
        if self.is_poisoned:
            raise CommitFailed
        try:
            work()
        except BaseException:
            self.is_poisoned = True
            raise
        return False

    def _write_gathered(self) -> bool:
        """One batch; whether there is another."""
        self._guarded(self._write_batch)
        waiting, self._writing = self._writing, []
        goes_on = bool(self._gathered) and not self._is_closed
        self._written.append(_Written(waiting, goes_on))
        return goes_on

    def _write_batch(self) -> None:
        begun = monotonic()
        self.gathering += 1
        work = self._take(self._writing)
        self._write(work)
        self.commits.batches += 1
        self.commits.changes += len(work)
        self.commits.seconds += monotonic() - begun

    def _take(self, waiting: list[Entry | _Settling]) -> list[W]:
        """What has gathered; who waits for it is added to `waiting`."""
        work: list[W] = []
        while True:
            try:
                piece, waits = self._gathered.popleft()
            except IndexError:
                return work
            if piece is not None:
                work.append(piece)
            if waits is not None:
                waiting.append(waits)

    # -- on the loop -----------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._busy and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        if self._is_closed:
            return
        self._busy = True
        self._lane.do(self._write_gathered, self._finished)

    def _finished(self, error: BaseException | None) -> None:
        if error is not None:
            self.fail(error, self._writing)
            return
        waiting, goes_on = self._written.popleft()
        self.finished += 1
        if not goes_on:
            self._busy = False
            if self._gathered:
                self._begin()
        self._telling = True
        try:
            self._tell(waiting)
        finally:
            self._telling = False

    def _tell(self, waiting: list[Entry | _Settling]) -> None:
        entries: list[Entry] = []
        for item in waiting:
            if not isinstance(item, _Settling):
                entries.append(item)
                continue
            if entries:
                self._committed(entries)
                entries = []
            item.done()
        if entries:
            self._committed(entries)

    def fail(self, error: BaseException, waiting: Sequence[Entry | _Settling] = ()) -> None:
        """Write nothing more, and tell everybody who waits."""
        if not self.is_failed:
            logger.critical("storage failed; stopping", exc_info=error)
            self.is_failed = self.is_poisoned = True
            self._failure.set_exception(error)
        unknown = [*waiting]
        self._take(unknown)
        self._failed([item for item in unknown if not isinstance(item, _Settling)])
        for item in unknown:
            if isinstance(item, _Settling):
                item.failed(CommitFailed())

    def close(self) -> None:
        """Stop, with everything that was added written; nobody is told any more."""
        self._is_closed = True
        self._failure.cancel()
        self._lane.close()
        if self._gathered and not self.is_poisoned:
            self._guarded(lambda: self._write(self._take([])))


def result_or_error(finished: asyncio.Future[Any]) -> Any:
    """What work off the loop came to; damage is an answer, anything else is a defect."""
    error = finished.exception()
    if isinstance(error, OSError):
        return StoredBytesUnreadable(str(error.filename or "a file"), error.strerror or str(error))
    return error if isinstance(error, HeadraceError) else finished.result()
