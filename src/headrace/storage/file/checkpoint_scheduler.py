"""When a checkpoint runs, and what follows it: the file modes' answer to a full journal segment.

One checkpoint at a time moves the full segments of the journal into stream files, packs and the
catalog. Only then may the segments be recycled and the streams' bytes leave memory. Each step has
one thread, and the next begins when the last has ended:

    event loop          `tick` starts a checkpoint where there is a full segment
    checkpoint thread   `_run` reads the sealed segments and writes files and catalog
    event loop          `_note_flushed` tells the logs what is in files now, some per turn
    journal thread      `_recycle` renames or removes the segments, between two batches
    event loop          `_recycled`: the next checkpoint may begin

The checkpoint thread owns the catalog and the checkpointer for as long as a checkpoint runs. The
list of sealed segments belongs to the journal's thread, which replaces it and never changes it in
place, so other threads can read it. Everything else here is touched on the event loop only, but
for `_is_sound` and `_segments_taken`, which the loop reads and the checkpoint thread sets.

A disk without room only delays a checkpoint: the journal still holds everything, and what was
half written is not yet in the catalog. The next attempt comes after twice as many ticks. Any other
failure, a failed sync above all, stops the storage.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from headrace.backoff import NO_JITTER, Backoff
from headrace.errors import HeadraceError, InsufficientStorage, Overloaded
from headrace.limits import Limits
from headrace.storage.ballast import Ballast
from headrace.storage.base import Unrecovered
from headrace.storage.committer import Committer
from headrace.storage.disk import Disk, is_transient_disk_error, suppress_transient
from headrace.storage.file.catalog import Catalog
from headrace.storage.file.checkpoint import Checkpointer, Flushed
from headrace.storage.file.frames import EncodedFrame
from headrace.storage.file.journal import Journal
from headrace.storage.file.stream_files import Sizes
from headrace.storage.file.throttle import Throttle

logger = logging.getLogger(__name__)

# Bytes that are in the journal and not yet in stream files. Past this nothing is accepted. It is
# what a start after a crash reads, and several segments, since only full ones are checkpointed.
PINNED_BYTES_MAX: Final = 256 * 1024 * 1024
# A checkpoint costs more by the stream than by the append. After one that had something for more
# streams than this, several segments are checkpointed together.
SPARSE_STREAMS = 20_000
SPARSE_SEGMENTS: Final = 3
FLUSHED_PER_TURN: Final = 1000  # streams; each turn of the loop takes about a millisecond
# Between two attempts at a checkpoint that finds no room on the disk.
RETRY_TICKS: Final = Backoff(1, 16, jitter=NO_JITTER)


class CheckpointedStorage(Protocol):
    """What the scheduler asks of the storage that it works for."""

    last_id: int

    @property
    def unrecovered(self) -> Sequence[Unrecovered]: ...

    @property
    def unflushed_bytes(self) -> int: ...

    @property
    def stream_count(self) -> int: ...

    @property
    def is_writable(self) -> bool:
        """Whether preparation and recovery have written all that comes before new changes."""
        ...

    @property
    def disk_refusal(self) -> HeadraceError | None: ...

    @property
    def refusal(self) -> HeadraceError | None: ...

    def note_flushed(self, stream_id: int, end_bytes: int, sizes: Sizes) -> None:
        """A stream's bytes up to `end_bytes` are in files and packs."""
        ...


class CheckpointScheduler:
    def __init__(
        self,
        storage: CheckpointedStorage,
        loop: asyncio.AbstractEventLoop,
        disk: Disk,
        limits: Limits,
        catalog: Catalog,
        journal: Journal,
        committer: Committer[EncodedFrame],
        ballast: Ballast,
        *,
        sync: bool,
        segment_bytes: int,
    ) -> None:
        self._storage = storage
        self._loop = loop
        self._disk = disk
        self._limits = limits
        self._catalog = catalog
        self._journal = journal
        self._committer = committer
        self._ballast = ballast
        self._sync = sync
        self._segment_bytes = segment_bytes
        # A thread of its own: snapshots that are slow to write must not keep the journal full.
        self._executor = ThreadPoolExecutor(1, "headrace-checkpoint")
        self._checkpointer: Checkpointer | None = None
        self.is_running = False
        self.is_out_of_space = False
        """Whether the last attempt found no room on the disk."""
        self._retry_in = 0  # ticks
        self._failures = 0  # in a row, for lack of room
        self._segments_taken = 0  # by the checkpoint that runs
        self._streams_flushed: int | None = None  # by the last checkpoint
        self._is_sound = True  # no sync of a checkpoint has failed
        self._is_closed = False

    @property
    def refusal(self) -> HeadraceError | None:
        """Why nothing can be added until a checkpoint has succeeded."""
        if self.is_out_of_space:
            return InsufficientStorage(0, self._segment_bytes)
        if self._storage.unflushed_bytes > PINNED_BYTES_MAX:
            return Overloaded("bytes not yet in stream files", PINNED_BYTES_MAX)
        return None

    def tick(self) -> None:
        """Once a second: start a checkpoint if one is due."""
        self._retry_in = max(0, self._retry_in - 1)
        is_due = self._journal.sealed and not self._should_gather()
        if self.is_running or not is_due or self._retry_in or not self._storage.is_writable:
            return
        self.is_running = True
        future = self._loop.run_in_executor(self._executor, self._run)
        future.add_done_callback(self._ran)

    def fill_ballast(self) -> None:
        """On the checkpoint's thread, which is the other one that gives the ballast up."""
        if self._ballast.is_held or self.is_running:
            return
        future = self._loop.run_in_executor(self._executor, self._ballast.fill)
        future.add_done_callback(_ballast_filled)

    def close(self) -> None:
        """Wait for the checkpoint that runs, and start no other."""
        self._is_closed = True
        self._executor.shutdown()

    def run_last(self) -> None:
        """After `close`, with the journal's thread gone: checkpoint all that the journal holds."""
        if not self._is_sound:
            return
        self._journal.finish()
        self._journal.rotate()
        self._journal.recycle(self._run()[0])

    def _should_gather(self) -> bool:
        """Whether to wait for more full segments, and there is room for them to wait."""
        streams = self._streams_flushed
        return (
            (self._storage.stream_count if streams is None else streams) > SPARSE_STREAMS
            and len(self._journal.sealed) < SPARSE_SEGMENTS
            and self._storage.unflushed_bytes < PINNED_BYTES_MAX // 2
            and self._storage.disk_refusal is None
        )

    # -- on the checkpoint's thread --------------------------------------------------------

    def _run(self) -> tuple[int, Flushed]:
        """The last frame that is applied now, and what each stream has in files."""
        # A sync that failed must not be tried again: the kernel has marked the pages clean, so it
        # would succeed and prove nothing.
        self._is_sound = False
        try:
            return self._apply_segments()
        except OSError as error:
            self._is_sound = is_transient_disk_error(error)
            if not self._is_sound or not self._ballast.release():
                raise
        # The room of the ballast may be enough for a checkpoint that frees more.
        return self._run()

    def _apply_segments(self) -> tuple[int, Flushed]:
        if self._checkpointer is None:
            throttle = Throttle(self._is_urgent)
            self._checkpointer = Checkpointer(
                self._disk, self._catalog, self._limits, throttle, sync=self._sync
            )
            self._checkpointer.set_aside = frozenset(one.id for one in self._storage.unrecovered)
        segments = self._journal.sealed
        self._segments_taken = len(segments)
        flushed = self._checkpointer.run(
            (body for segment in segments for body in self._journal.scan_segment(segment)),
            self._storage.last_id,
        )
        self._is_sound = True
        return self._catalog.current.applied_lsn, flushed

    def _is_urgent(self) -> bool:
        """Whether as much waits as the checkpoint takes, or someone waits for its end."""
        is_behind = len(self._journal.sealed) >= 2 * self._segments_taken
        is_filling = self._storage.unflushed_bytes > PINNED_BYTES_MAX * 3 // 4
        return is_behind or is_filling or self._is_closed or self._storage.refusal is not None

    # -- on the event loop, behind a checkpoint --------------------------------------------

    def _ran(self, finished: asyncio.Future[tuple[int, Flushed]]) -> None:
        error = finished.exception()
        if is_transient_disk_error(error):
            self._postpone(error)
            return
        if error is not None:
            # A failed sync, or a defect. The journal has everything, but nothing would leave it any
            # more: stop, and let the next start replay it.
            self._committer.fail(error)
            return
        self.is_out_of_space, self._failures = False, 0
        applied_lsn, flushed = finished.result()
        self._streams_flushed = len(flushed)
        self._note_flushed(iter(flushed.items()), applied_lsn)

    def _postpone(self, reason: BaseException | None) -> None:
        """Nothing is lost: the journal holds it, and the catalog names nothing half written."""
        if not self.is_out_of_space:
            logger.warning("the disk is full; the checkpoint will be retried: %s", reason)
        self.is_running = False
        self.is_out_of_space = True
        self._failures += 1
        self._retry_in = round(RETRY_TICKS.after(self._failures))
        # Segments that wait to be used again take room, too.
        self._committer.run(self._remove_free_segments)

    def _note_flushed(
        self, flushed: Iterator[tuple[int, tuple[int, Sizes]]], applied_lsn: int
    ) -> None:
        """Some streams per turn: very many at once would hold up every request."""
        if self._is_closed:
            return  # the last checkpoint recycles what this one applied
        left = FLUSHED_PER_TURN
        for stream_id, (end_bytes, sizes) in flushed:
            self._storage.note_flushed(stream_id, end_bytes, sizes)
            left -= 1
            if not left:
                self._loop.call_soon(self._note_flushed, flushed, applied_lsn)
                return
        self._committer.run(lambda: self._recycle(applied_lsn), self._recycled)

    def _recycled(self) -> None:
        """Not before: the next checkpoint must not read segments that are being recycled."""
        self.is_running = False

    # -- on the journal's thread -----------------------------------------------------------

    def _recycle(self, applied_lsn: int) -> None:
        """Segments that stay for want of room are recycled behind the next checkpoint."""
        with suppress_transient():
            self._journal.recycle(applied_lsn)

    def _remove_free_segments(self) -> None:
        with suppress_transient():
            self._journal.remove_free_segments()


def _ballast_filled(finished: asyncio.Future[None]) -> None:
    error = finished.exception()
    if error is not None:
        logger.warning("the reserve for a full disk could not be written: %s", error)
