"""file-durable and file-fast: one journal, one sync, all streams.

A change is durable when the batch it is in is synced (file-fast skips the sync, and says so). The
bytes stay in memory until a checkpoint has carried them over into the stream's files; from then on
only the end of a stream is kept in memory.

    thread                owns
    event loop            the logs and their memory, and whether changes are accepted
    headrace-journal      the journal: one batch after the other (committer)
    headrace-checkpoint   catalog, packs and stream files, while a checkpoint runs
    headrace-disk         nothing: reads and blobs, with all they need given on the loop

Recovery runs on the main thread before any of these begins, and reads the catalog, then the
journal behind it. A stream that fails there is set aside, with its forks, and the others are
served. Damage that leaves open which stream it hit stops the start: a name could seem free.

A disk that is full or read-only stops nothing either. What needs room waits and is tried again
each second; writes are refused meanwhile, and deletes go on in the room of the ballast.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from headrace.errors import (
    DirectoryMismatch,
    HeadraceError,
    InsufficientStorage,
    StorageFailed,
    StorageReadOnly,
    StoredBytesUnreadable,
)
from headrace.limits import Limits
from headrace.protocol.stream import Appended, StreamState
from headrace.storage.ballast import Ballast
from headrace.storage.base import (
    Change,
    Check,
    CheckResult,
    Commits,
    Created,
    Delayed,
    Documents,
    Entry,
    Failed,
    Log,
    Orphaned,
    Postponed,
    Reclaimed,
    Recovered,
    Removed,
    Unrecovered,
    ignore,
)
from headrace.storage.blobs import DIRECTORY as SNAPSHOTS
from headrace.storage.blobs import Blobs, DiskBlobs
from headrace.storage.committer import Committer, deliver_result, refusal_of
from headrace.storage.disk import (
    Disk,
    is_transient_disk_error,
    wait_briefly_for_descriptors,
)
from headrace.storage.file import atomic_file, pack_format, stream_files
from headrace.storage.file.catalog import CURRENT, Catalog, apply_documents
from headrace.storage.file.catalog_entries import sizes_of, state_of
from headrace.storage.file.checkpoint_scheduler import CheckpointScheduler
from headrace.storage.file.file_log import FileLog, PartCheck
from headrace.storage.file.frames import (
    BlobFrame,
    CreateFrame,
    DocumentsFrame,
    EncodedFrame,
    Frame,
    RemoveFrame,
    StreamFrame,
    documents_frame,
    encode_change,
    encode_frame,
)
from headrace.storage.file.journal import DIRECTORY as JOURNAL
from headrace.storage.file.journal import LAST, SEGMENT_BYTES, Journal
from headrace.storage.file.replay import OutOfOrder, apply, created_state
from headrace.storage.file.stream_files import NO_FILES, Sizes
from headrace.storage.records import StreamRecord
from headrace.storage.worker_thread import WorkerFactory, WorkerThread

logger = logging.getLogger(__name__)

READ_THREADS_MAX: Final = 4
UNSYNCED: Final = "unsynced"
SPACE_CHECK_BYTES: Final = 256 * 1024


def _check_room(disk: Disk, segment_bytes: int) -> None:
    """A new directory has nothing to read: with no room to write, either, it is of no use."""
    refusal = disk.refusal(segment_bytes)
    if isinstance(refusal, InsufficientStorage) and refusal.free_bytes < segment_bytes:
        refusal.is_stuck = True
        raise refusal


def _check_journal(disk: Disk) -> None:
    """A journal that is lost must not look like one that was never begun.

    Everything else is written after the journal: by checkpoints, or for streams that are in it.
    Begun anew, it would number its frames from one again and hand out offsets a second time.
    """
    if LAST.partition("/")[2] in disk.list(JOURNAL):
        return
    for directory in (stream_files.DIRECTORY, pack_format.DIRECTORY, SNAPSHOTS):
        if disk.list(directory):
            raise StoredBytesUnreadable(LAST, f"the file is missing, but {directory} is in use")
    if atomic_file.read(disk, CURRENT) is not None:
        raise StoredBytesUnreadable(LAST, "the file is missing, but the catalog is in use")


class FileStorage:
    def __init__(
        self,
        disk: Disk,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        *,
        sync: bool,
        segment_bytes: int = SEGMENT_BYTES,
        worker_factory: WorkerFactory = WorkerThread,
    ) -> None:
        disk.lock()
        if disk.list("acid"):
            raise DirectoryMismatch(disk.name, "acid", "one of the file modes")
        self._disk = disk
        self._limits = limits
        self._sync = sync
        self._loop = loop
        _check_journal(disk)
        is_new = not disk.list(JOURNAL)
        if is_new:
            _check_room(disk, segment_bytes)
            logger.info("%s is empty: a new data directory", disk.name)
        self._catalog = Catalog(disk, sync=sync)
        self._journal = Journal(disk, sync=sync, segment_bytes=segment_bytes)
        disk.make_directory(stream_files.DIRECTORY)
        disk.make_directory(pack_format.DIRECTORY)
        self.blobs: Blobs = DiskBlobs(disk, sync=sync)
        self._ballast = Ballast(disk)
        self._is_prepared = False
        try:
            self._prepare()
        except OSError as error:
            # On a disk that is full or read-only, what is there can be read all the same.
            if is_new or not is_transient_disk_error(error):
                raise
        self._committer: Committer[EncodedFrame] = Committer(
            loop, "headrace-journal", self._write, worker_factory
        )
        self._read_executor = ThreadPoolExecutor(
            READ_THREADS_MAX, "headrace-disk", initializer=wait_briefly_for_descriptors
        )
        self._logs: dict[int, FileLog] = {}
        self._unrecovered: dict[int, Unrecovered] = {}
        self._documents: dict[str, bytes] = {}
        self.last_id = 0
        self._is_closed = False
        self._pinned_bytes = 0
        self._unchecked_bytes = 0
        self._segment_bytes = segment_bytes
        self.disk_refusal: HeadraceError | None = None
        self._checkpoints = CheckpointScheduler(
            self,
            loop,
            disk,
            limits,
            self._catalog,
            self._journal,
            self._committer,
            self._ballast,
            sync=sync,
            segment_bytes=segment_bytes,
        )

    def _prepare(self) -> None:
        """Before anything is written.

        What file-fast left in the page cache is synced before file-durable builds on it.
        """
        if self._is_prepared:
            return
        if not self._sync:
            self._disk.open(UNSYNCED, create=True).close()
        elif UNSYNCED in self._disk.list(""):
            self._disk.sync_everything()
            self._disk.remove(UNSYNCED)
        # A synced file is still lost if its directory entry is not durable.
        self._disk.sync_directory("")
        # Not synced: it is there for its room, not for its content.
        self._ballast.fill()
        self._is_prepared = True

    # -- the life of the storage -----------------------------------------------------------

    def start(
        self,
        committed: Callable[[Sequence[Entry]], None],
        failed: Callable[[Sequence[Entry]], None],
        delayed: Delayed | None = None,
    ) -> None:
        self._committer.start(committed, failed, delayed)

    def recover(self) -> Iterable[Recovered]:
        catalogued = self._catalog.load()
        self._documents = catalogued.documents
        # Ids are never given twice. They once began at the clock's milliseconds, and a server that
        # was started with an earlier clock gave the ids of deleted streams again: two creations of
        # one stream met in a checkpoint, and a cache answered 304 for other content under the same
        # ETag.
        self.last_id = self._catalog.current.last_id
        for entry in catalogued.streams.values():
            try:
                state = state_of(entry)
                self._logs[state.id] = self._new_log(state, sizes_of(entry))
            except Exception as error:
                self._set_aside(entry.id, entry.stream, error)
        for _, frame in self._journal.recover(self._catalog.current.applied_lsn):
            self._replay_one(frame)
        self._check_space()
        # Only now: a stream that is set aside while frames are replayed may be the source of
        # streams that were restored before it.
        for log in list(self._logs.values()):
            try:
                self._parent_of(log.state)  # which may have been left out since
            except Orphaned as error:
                self._set_aside(log.state.id, None, error)
                continue
            yield Recovered(log.state, log)

    @property
    def unrecovered(self) -> list[Unrecovered]:
        return list(self._unrecovered.values())

    def _set_aside(self, stream_id: int, record: StreamRecord | None, error: Exception) -> None:
        """A defect in one stream leaves out that stream, and stops no start."""
        if isinstance(error, MemoryError | OSError):
            raise error  # a defect of the machine
        log = self._logs.get(stream_id)
        if log is not None:
            self._forget(log)
            fork = log.state.config.fork
            source_id = None if fork is None else fork.source_id
            found = Unrecovered(stream_id, log.state.name, error, source_id, log.state.snapshot)
        else:
            name = "" if record is None else record.name
            origin = None if record is None else record.fork
            source_id = None if origin is None else origin.source_id
            found = Unrecovered(stream_id, name, error, source_id, is_known=False)
        self._unrecovered[stream_id] = found

    def _replay_one(self, frame: Frame) -> None:
        if isinstance(frame, DocumentsFrame | BlobFrame):
            self._replay(frame)
        elif frame.stream_id not in self._unrecovered:
            try:
                self._replay(frame)
            except Exception as error:
                record = frame.stream if isinstance(frame, CreateFrame) else None
                self._set_aside(frame.stream_id, record, error)
        elif isinstance(frame, RemoveFrame) and frame.whole:
            del self._unrecovered[frame.stream_id]

    def _parent_of(self, state: StreamState) -> FileLog | None:
        fork = state.config.fork
        if fork is None:
            return None
        parent = self._logs.get(fork.source_id)
        if parent is None:
            raise Orphaned(f"Its source, {fork.request.source!r}, is missing or set aside.")
        return parent

    def _new_log(self, state: StreamState, sizes: Sizes = NO_FILES) -> FileLog:
        return FileLog(self._disk, state, self._parent_of(state), sizes)

    def take_documents(self) -> dict[str, bytes]:
        taken, self._documents = self._documents, {}
        return taken

    def reserve_ids(self, id: int) -> None:
        self.last_id = max(self.last_id, id)

    def _replay(self, frame: Frame) -> None:
        if isinstance(frame, CreateFrame):
            if frame.stream_id in self._logs:
                reason = f"stream {frame.stream_id:016x} is created twice"
                raise StoredBytesUnreadable(JOURNAL, reason)
            self.reserve_ids(frame.stream_id)
            state = created_state(frame)
            self._logs[state.id] = self._new_log(state)
            self._apply(frame.initial)
        elif isinstance(frame, DocumentsFrame):
            apply_documents(self._documents, frame.documents)
        else:
            assert not isinstance(frame, BlobFrame), "blobs occur in exports only"
            self._apply(frame)

    def _apply(self, frame: StreamFrame) -> None:
        log = self._log(frame.stream_id)
        state = log.state
        try:
            appended = apply(state, frame, self._limits)
        except OutOfOrder as gap:
            reason = f"frames of stream {frame.stream_id:016x} are missing: {gap}"
            raise StoredBytesUnreadable(JOURNAL, reason) from None
        if appended is not None:
            log.tail.append(appended)
            self._pinned_bytes += len(appended.data)
            return
        log.reclaim(state.retained_from)
        if state.snapshot is not None:
            self.reserve_ids(state.snapshot.blob_id)
        if isinstance(frame, RemoveFrame) and frame.whole:
            self._forget(log)

    def _log(self, stream_id: int) -> FileLog:
        log = self._logs.get(stream_id)
        if log is None:
            reason = f"a frame belongs to stream {stream_id:016x}, which does not exist"
            raise StoredBytesUnreadable(JOURNAL, reason)
        return log

    def _forget(self, log: FileLog) -> None:
        """A stream is gone whole: nothing of it needs to get into files any more."""
        del self._logs[log.state.id]
        self._pinned_bytes -= log.state.tail.bytes - log.flushed_bytes

    async def failed(self) -> None:
        await self._committer.failed()

    @property
    def unflushed_bytes(self) -> int:
        """What is in the journal and not yet in stream files."""
        return self._pinned_bytes

    @property
    def removal_refusal(self) -> HeadraceError | None:
        if self._committer.is_failed:
            return StorageFailed()
        postponed = self._committer.postponed
        if postponed is not None:
            return refusal_of(postponed.reason)
        return self.disk_refusal if isinstance(self.disk_refusal, StorageReadOnly) else None

    @property
    def refusal(self) -> HeadraceError | None:
        if self._committer.is_failed or self._committer.postponed is not None:
            return self.removal_refusal
        return self.disk_refusal or self._checkpoints.refusal

    @property
    def stream_count(self) -> int:
        return len(self._logs)

    @property
    def is_writable(self) -> bool:
        """Whether preparation and recovery have written all that comes before new changes."""
        return self._is_prepared and self._journal.is_recovered

    def note_flushed(self, stream_id: int, end_bytes: int, sizes: Sizes) -> None:
        """A checkpoint has a stream's bytes up to `end_bytes` in files: free their memory."""
        log = self._logs.get(stream_id)
        if log is not None:
            self._pinned_bytes -= end_bytes - log.flushed_bytes
            log.flush(end_bytes, sizes)

    def commits(self) -> Commits:
        return self._committer.commits

    def tick(self) -> None:
        self._check_space()
        self._committer.retry()
        if isinstance(self.disk_refusal, InsufficientStorage):
            # A checkpoint frees what was deleted. One that found no room is tried first.
            if not self._checkpoints.is_out_of_space:
                # Only full segments are checkpointed, and the deletes that free space may be in one
                # that is not.
                self._committer.run(self._journal.rotate)
        elif self._committer.is_idle:
            self._committer.run(self._journal.prove_durable)
            if self._is_prepared:
                self._checkpoints.fill_ballast()
        self._checkpoints.tick()

    def close(self) -> None:
        """With everything in stream files and catalog, so that a start has nothing to replay."""
        self._is_closed = True
        self._committer.close()
        self._read_executor.shutdown()
        self._checkpoints.close()
        # After a failure nothing is written any more: a sync behind a failed one proves nothing.
        if not self._committer.is_poisoned and self.is_writable:
            try:
                self._checkpoints.run_last()
            except (OSError, Postponed) as error:
                # Nothing is lost: the journal holds it, and the next start replays it.
                logger.warning("the checkpoint at shutdown failed: %s", error)
        self._journal.close()
        self._disk.close()

    def abandon(self) -> None:
        self._is_closed = True
        self._read_executor.shutdown()
        self._journal.close()
        self._disk.close()

    # -- changes ---------------------------------------------------------------------------

    def new_log(self, state: StreamState, source: Log | None) -> FileLog:
        assert source is None or isinstance(source, FileLog), "a storage branches its own logs"
        log = self._logs[state.id] = FileLog(self._disk, state, source)
        return log

    def commit(self, log: Log, change: Change, entry: Entry | None) -> None:
        assert isinstance(log, FileLog), "a storage commits to its own logs"
        try:
            if isinstance(change, Appended):
                self._add(log, change)
            elif isinstance(change, Created):
                self._add(log, change.initial)
            elif isinstance(change, Reclaimed):
                log.reclaim(change.retained_from)
            elif isinstance(change, Removed) and change.whole:
                self._forget(log)
            # Encoded here, while `log.state` is what this change made of it: the thread that writes
            # it runs when later changes have been applied.
            self._committer.add(encode_change(log.state, change), entry)
        except Exception as defect:
            # Memory has a change now that the journal will not have.
            self._committer.fail(defect, [] if entry is None else [entry])

    def fail(self, defect: Exception) -> None:
        self._committer.fail(defect)

    def _add(self, log: FileLog, change: Appended) -> None:
        log.tail.append(change)
        byte_count = len(change.data)
        self._pinned_bytes += byte_count
        # A second is long on a fast disk: look for room again after every so many bytes.
        self._unchecked_bytes += byte_count
        if self._unchecked_bytes > SPACE_CHECK_BYTES:
            self._check_space()

    def _check_space(self) -> None:
        self._unchecked_bytes = 0
        self.disk_refusal = self._disk.refusal(self._pinned_bytes + self._segment_bytes)

    def _write(self, batch: list[EncodedFrame]) -> None:
        """On the journal's thread, which gets frames encoded: it is to hold up no other."""
        if not batch:
            return
        if not self._is_prepared:
            try:
                self._prepare()
            except OSError as error:
                if is_transient_disk_error(error):
                    raise Postponed(error) from error
                raise
        try:
            self._journal.write(batch)
        except Postponed:
            if not self._ballast.release():
                raise
            self._journal.write(batch)

    def when_durable(
        self, log: Log, done: Callable[[], None], failed: Callable[[HeadraceError], None] = ignore
    ) -> None:
        self._committer.when_durable(done, failed)

    def put_documents(self, documents: Documents) -> None:
        self._committer.add(encode_frame(documents_frame(documents)), None)

    def when_documents_durable(self, done: Callable[[], None], failed: Failed) -> None:
        self._committer.when_durable(done, failed)

    def run_in_thread(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        if self._is_closed:
            return  # the client disconnected and the server is closing
        future = self._loop.run_in_executor(self._read_executor, work)
        future.add_done_callback(lambda finished: deliver_result(finished, done))

    def checks(self) -> Iterator[Check]:
        for stream_id in list(self._logs):
            number = 0
            while (log := self._logs.get(stream_id)) is not None and number < log.sizes.all_blocks:
                before = self._catalog.current
                part = PartCheck(log, max(number, log.sizes.first_block))
                yield part
                number = part.next_block
                # A checkpoint may have reclaimed unneeded bytes meanwhile: that is not damage,
                # and what is will still be there at the next pass.
                if (
                    part.damage
                    and not self._checkpoints.is_running
                    and self._catalog.current is before
                ):
                    yield partial(CheckResult, 0, part.damage, log.state.name)
