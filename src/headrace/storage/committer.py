"""Group commit, and the rule that nothing is visible before it is durable.

Theory of operation. `add` collects work; while the thread writes and syncs one batch, the next one
gathers, so every change that arrives during a sync shares the next. Nothing leaves the server
before what it rests on is durable: neither acknowledgements and reads of new bytes, nor refusals,
repeats and 404s. Those change nothing and wait in the same queue (`when_durable`), so one
completion per batch calls everyone in the order in which they came.

    gathering   add, when_durable                               event loop
    writing     `write` of one batch                            committer's thread
    done        callbacks in order; the next batch has begun    event loop

Failure is final. Later changes were decided on state that may be lost, and they cannot be taken
back one by one; and a sync after a failed one proves nothing. So the first failure poisons the
committer: on the thread itself, before the loop is notified, since more work may be queued there.
Every waiting request is answered that its outcome is unknown.

A batch that was not written at all (`Postponed`: no room, no descriptor) is not a failure. It
waits, with what gathers behind it, until `retry`; requests that arrive meanwhile are refused.

    `write`     the batch is           later changes     requests that wait for it
    returns     durable                are the next one  answered, in order
    Postponed   not written            wait behind it    those that changed nothing are refused;
                                                         the others, if it happens a second time
    raises      written or not         are dropped       outcome unknown; the storage stops

The event loop owns every field but `is_poisoned`, which only ever becomes true, and the figures in
`commits`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.clock import monotonic
from headrace.errors import (
    CommitFailed,
    Corrupt,
    HeadraceError,
    InsufficientStorage,
    StorageReadOnly,
    StoredBytesUnreadable,
)
from headrace.faults import hand_over, internal_fault, tell
from headrace.storage.base import Commits, Delayed, Entry, Failed, Postponed
from headrace.storage.disk import descriptor_refusal
from headrace.storage.worker_thread import WorkerFactory, WorkerThread

logger = logging.getLogger(__name__)

W = TypeVar("W")
Committed = Callable[[Sequence[Entry]], None]


def _nothing() -> None:
    """Nobody waits."""


class _Waiter(NamedTuple):
    """A callback that changed nothing itself and waits for what was added before it."""

    done: Callable[[], None]
    failed: Failed


class Committer(Generic[W]):
    """Hands what `add` collects to `write`, on a thread of its own, batch by batch."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        write: Callable[[list[W]], None],
        worker_factory: WorkerFactory = WorkerThread,
    ) -> None:
        self._loop = loop
        self._write = write
        self._work: list[W] = []
        self._waiting: list[Entry | _Waiter] = []
        # A batch is on the thread; `_begin` is on the loop's queue; callbacks are being called. Any
        # of them means that something added before may not be durable or not be reported yet.
        self._busy = False
        self._scheduled = False
        self._notifying = False
        self.gathering = 1
        """The number of the batch that `add` adds to."""
        self.finished = 0
        """The number of the last batch that is durable."""
        self._worker = worker_factory(loop, name)
        self._failure: asyncio.Future[None] = loop.create_future()
        self.commits = Commits()
        self.is_failed = False
        # Set by the thread before the loop knows of the failure, so that no queued work follows.
        self.is_poisoned = False
        self.postponed: Postponed | None = None
        """Why the next batch could not be written, if it has to wait."""
        self._is_closed = False

    def start(
        self, committed: Committed, failed: Committed, delayed: Delayed | None = None
    ) -> None:
        self._committed = committed
        self._failed = failed
        self._delayed = delayed

    async def failed(self) -> None:
        """Returns never, or raises what writing died of."""
        await asyncio.shield(self._failure)

    @property
    def is_idle(self) -> bool:
        """Whether everything that was added is durable, and every callback has been called.

        While callbacks run (`_notifying`) it is not: a callback that adds a waiter would otherwise
        have it called before callbacks that came earlier.
        """
        return not (self._busy or self._work or self._waiting or self._notifying)

    def add(self, work: W, entry: Entry | None) -> None:
        if self.is_failed:
            self._failed([entry] if entry is not None else [])
            return
        # Without an entry nobody is called back, but the work keeps its place in the order.
        self._work.append(work)
        if entry is not None:
            self._waiting.append(entry)
        self._schedule()

    def when_durable(self, done: Callable[[], None], failed: Failed) -> None:
        """Call back when everything added so far is durable, or `failed` when it never will be."""
        if self.is_failed:
            failed(CommitFailed())
        elif self.is_idle:
            done()  # in the caller's frame: the common case for reads costs no turn of the loop
        elif self.postponed is not None:
            failed(self._refusal())
        else:
            # Also with no work in between: an empty batch follows the one that is being written.
            self._waiting.append(_Waiter(done, failed))
            self._schedule()

    def run(self, work: Callable[[], None], done: Callable[[], None] = _nothing) -> None:
        """Do something else on the writing thread, between two batches; then call `done`."""
        if self.is_failed:
            return
        self._worker.submit(lambda: self._guarded(work), lambda error: self._ran(error, done))

    def _ran(self, error: BaseException | None, done: Callable[[], None]) -> None:
        if error is None:
            done()
        elif not isinstance(error, Postponed):
            self.fail(error)

    def _guarded(self, work: Callable[[], None]) -> None:
        """On the thread: the first failure is the last thing that happens."""
        # Queued before the loop knew of the failure: it was decided on state that may be lost.
        if self.is_poisoned:
            raise CommitFailed
        try:
            work()
        except Postponed:
            raise
        except BaseException:
            self.is_poisoned = True
            raise

    def _timed(self, work: list[W]) -> None:
        begun = monotonic()
        self._write(work)
        self.commits.batches += 1
        self.commits.changes += len(work)
        self.commits.seconds += monotonic() - begun

    def _schedule(self) -> None:
        # `call_soon`, not now: all requests of this turn of the loop share the batch.
        if not self._busy and not self._scheduled and self.postponed is None:
            self._scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        if self._is_closed:
            return
        self._busy = True
        # What is added from here on belongs to the next batch; storage keeps by this number until
        # when bytes have to stay in memory.
        self.gathering += 1
        # The loop cuts the batches, not the thread. What one callback of the loop adds belongs
        # together (a stream and its line in the registry); a thread that took what had gathered by
        # itself would part them.
        work, self._work = self._work, []
        waiting, self._waiting = self._waiting, []
        self._worker.submit(
            lambda: self._guarded(lambda: self._timed(work)),
            lambda error: self._finished(work, waiting, error),
        )

    def retry(self) -> None:
        """Try again to write what could not be written, if there is something."""
        if self.postponed is not None and not self._busy and not self.is_failed:
            self._begin()

    def _postpone(self, work: list[W], waiting: list[Entry | _Waiter], reason: Postponed) -> None:
        """Nothing of a batch was written: it becomes the beginning of the next one.

        Its changes were applied to the state in memory, so they stay queued and are written when
        there is room: dropping them would let memory and disk disagree. Only the clients are
        answered, from the second attempt on; many a shortage is over before that.
        """
        is_first, self.postponed = self.postponed is None, reason
        self._busy = False
        self.gathering -= 1
        self._work = work + self._work
        everybody = waiting + self._waiting
        entries = [item for item in everybody if not isinstance(item, _Waiter)]
        if is_first:
            logger.warning("nothing can be written for now: %s", reason)
        elif self._delayed is not None:
            # The shortage lasts: answer the clients, and keep their changes without them.
            entries = self._delayed(entries, self._refusal())
        self._waiting = [*entries]
        for item in everybody:
            if isinstance(item, _Waiter):
                item.failed(self._refusal())

    def _refusal(self) -> HeadraceError:
        """The answer to requests that changed nothing and wait for changes that others made."""
        assert self.postponed is not None, "a batch is postponed"
        return refusal_of(self.postponed.reason)

    def _finished(
        self, work: list[W], waiting: list[Entry | _Waiter], error: BaseException | None
    ) -> None:
        # After a failure elsewhere (`fail`) nothing is retried any more.
        if isinstance(error, Postponed) and not self.is_failed:
            self._postpone(work, waiting, error)
            return
        if error is not None:
            self.fail(error, waiting)
            return
        if self.postponed is not None:
            logger.warning("writing continues")
            self.postponed = None
        self._busy = False
        self.finished += 1
        # The next batch first: the thread syncs it while the loop calls back for this one.
        if self._work or self._waiting:
            self._begin()
        self._notifying = True
        try:
            self._notify(waiting)
        except Exception as defect:
            # Which callbacks ran is unknown: fail all, so that no request waits for ever.
            self.fail(defect, waiting)
        finally:
            self._notifying = False

    def _notify(self, waiting: list[Entry | _Waiter]) -> None:
        """Call every callback, in the order of arrival, also if one of them raises.

        Entries between two waiters go to `committed` in one call, which is cheaper than one each.
        """
        entries: list[Entry] = []
        for item in waiting:
            if not isinstance(item, _Waiter):
                entries.append(item)
                continue
            if entries:
                self._committed(entries)
                entries = []
            try:
                item.done()
            except Exception:
                hand_over(item.failed, internal_fault("an answer that waited for storage"))
        if entries:
            self._committed(entries)

    def fail(self, error: BaseException, waiting: Sequence[Entry | _Waiter] = ()) -> None:
        """Write nothing more, and fail everything that waits."""
        if not self.is_failed:
            logger.critical("storage failed; stopping", exc_info=error)
            self.is_failed = self.is_poisoned = True
            self._failure.set_exception(error)  # the server's supervision waits for it, and stops
        # Everything that was added is uncertain: what is on the thread, and what gathers behind it.
        unknown = [*waiting, *self._waiting]
        self._waiting, self._work = [], []
        self._failed([item for item in unknown if not isinstance(item, _Waiter)])
        for item in unknown:
            if isinstance(item, _Waiter):
                tell(item.failed, CommitFailed())

    def close(self) -> None:
        """Stop, with everything that was added written; no callback is called any more.

        What was added last was never acknowledged, so no client relies on it if this fails.
        """
        self._is_closed = True
        self._failure.cancel()
        # Joins the thread: the batch that is on it is written first, and no other follows.
        self._worker.close()
        if self._work and not self.is_poisoned:
            try:
                self._guarded(lambda: self._write(self._work))
            except Postponed as reason:
                logger.warning("unacknowledged changes could not be written: %s", reason)


def refusal_of(reason: OSError) -> HeadraceError:
    """The answer to clients when a disk has no room, or is read-only."""
    if reason.errno == errno.EROFS:
        return StorageReadOnly()
    return descriptor_refusal(reason) or InsufficientStorage(0, 0, is_stuck=True)


def deliver_result(finished: asyncio.Future[Any], done: Callable[[Any], None]) -> None:
    """Hand on what work off the loop came to. Damage is an answer, and so is a defect."""
    tell(done, _result_or_error(finished))


def _result_or_error(finished: asyncio.Future[Any]) -> Any:
    try:
        return finished.result()
    except HeadraceError as error:
        if isinstance(error, Corrupt):
            _log_damage(error.detail)
        return error
    except OSError as error:
        if (refusal := descriptor_refusal(error)) is not None:
            return refusal
        damage = StoredBytesUnreadable(
            str(error.filename or "a file"), error.strerror or str(error)
        )
        _log_damage(damage.detail)
        return damage
    except Exception:
        return internal_fault("a read of the disk")


@lru_cache(maxsize=256)
def _log_damage(detail: str) -> None:
    """Each place once: otherwise a client that reads it repeatedly would fill the log."""
    logger.error("a read found damaged bytes: %s Check the directory with headrace verify.", detail)
