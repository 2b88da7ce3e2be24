"""acid: LMDB, one transaction per group commit.

Theory of operation. Streams are spread over shards by a hash of their name. Each shard is an LMDB
environment with a committer thread of its own; all changes of a batch are one transaction, so a
batch is there whole or not at all. LMDB copies pages on write and switches its root last, which is
why a transaction that finds no room has changed nothing and is retried as a whole. A fork lives in
its source's shard: it needs the source to exist in the same transaction history.

Deletes of large streams are not done at once. The transaction that deletes a stream removes its
record, so that the name is free, and notes the rest in `removed`; later transactions delete some
of it each, with the appends of their batch.

The number of shards is stored when the directory is created, and another number is refused.

What LMDB does not do: it maps its file and checks no page. Values carry a checksum of their key
and content (schema), transactions are counted (rollback_guard), and the file's size is compared
with LMDB's own count before it is mapped (lmdb_pages). A damaged page inside the file can still
end the process; `headrace verify` reads in a child process for that reason (verify_acid).

Threads: once started, a shard's environment is written by its committer's thread only. Readers use
transactions of their own, on a small pool. The event loop owns the logs' memory, and asks the file
system for nothing but its free space.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import google_crc32c
import orjson

from headrace.errors import (
    DirectoryMismatch,
    HeadraceError,
    InsufficientStorage,
    StorageFailed,
    StorageReadOnly,
    StoredBytesDamaged,
    StoredBytesUnreadable,
)
from headrace.protocol.offsets import Position
from headrace.protocol.stream import Appended, StreamState
from headrace.storage.acid.lmdb_shard import DATA, Shard
from headrace.storage.acid.schema import DATABASES
from headrace.storage.acid.transaction_writer import ReservedId
from headrace.storage.ballast import Ballast
from headrace.storage.base import (
    Change,
    Check,
    CheckResult,
    ColdRead,
    Commits,
    Created,
    Delayed,
    Documents,
    Entry,
    Failed,
    Log,
    Orphaned,
    Reclaimed,
    Recovered,
    Removed,
    Unrecovered,
    ignore,
)
from headrace.storage.blobs import Blobs, DiskBlobs
from headrace.storage.committer import deliver_result, refusal_of
from headrace.storage.disk import Disk, RealDisk, wait_briefly_for_descriptors
from headrace.storage.tiered_log import TieredLog
from headrace.storage.worker_thread import WorkerFactory, WorkerThread

logger = logging.getLogger(__name__)

FORMAT: Final = 2
MANIFEST: Final = "acid/manifest.json"
READY: Final = "acid/ready"
HOT_BYTES_MAX: Final = 64 * 1024  # the end of each stream that is kept in memory
READ_THREADS_MAX: Final = 4
SPACE_CHECK_BYTES: Final = 256 * 1024
LIVE_BYTES_FACTOR: Final = 1.5  # pages are not full, and keys and records take some


class AcidLog(TieredLog):
    """One stream: its end in memory, all that is durable of it in its shard."""

    __slots__ = ("_mark", "shard")

    def __init__(self, state: StreamState, shard: Shard, parent: AcidLog | None) -> None:
        super().__init__(state, parent)
        self.shard = shard
        self._mark = (0, state.tail)

    def append(self, change: Appended) -> None:
        self.tail.append(change)
        if len(self.tail.data) > HOT_BYTES_MAX:
            self._evict_durable()

    def _evict_durable(self) -> None:
        """Drop from memory what was there when a finished batch began: it is durable."""
        # The mark is the batch that was gathering at some moment, and the tail of that moment. With
        # that batch finished all before that tail is committed, and LMDB's readers find it.
        batch, end = self._mark
        committer = self.shard.committer
        if batch <= committer.finished:
            surplus = end.bytes - self.tail.base.bytes - HOT_BYTES_MAX // 2
            self.tail.evict(max(0, surplus))
            self._mark = (committer.gathering, self.state.tail)

    def cold_read(self, start: Position, limit: Position, bytes_max: int) -> ColdRead:
        return lambda: self.shard.read(self.state.id, start, limit, bytes_max)


def _read_manifest(disk: Disk) -> Any:
    file = disk.open(MANIFEST)
    text = file.read(0, file.size())
    file.close()
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise StoredBytesDamaged(MANIFEST, "0") from None


def shard_count_of(disk: Disk) -> int:
    """How many shards a data directory was made with."""
    count: int = _read_manifest(disk)["shards"]
    return count


class _PartCheck:
    """Some values of one database, read again; `next_key` is where the next part begins."""

    def __init__(self, shard: Shard, database: bytes, first: bytes) -> None:
        self._shard = shard
        self._database = database
        self._first = first
        self.next_key: bytes | None = None

    def __call__(self) -> CheckResult:
        self.next_key, found = self._shard.check_part(self._database, self._first)
        return found


class AcidStorage:
    def __init__(
        self,
        directory: Path,
        shard_count: int,
        loop: asyncio.AbstractEventLoop,
        worker_factory: WorkerFactory = WorkerThread,
        *,
        read_only: bool = False,
    ) -> None:
        """`read_only` changes nothing in the directory; so it is where the disk is read-only."""
        self._disk = RealDisk(directory)
        self._disk.lock()
        try:
            self._open(directory, shard_count, loop, worker_factory, read_only=read_only)
        except BaseException:
            self._disk.close()
            raise

    def _open(
        self,
        directory: Path,
        shard_count: int,
        loop: asyncio.AbstractEventLoop,
        worker_factory: WorkerFactory,
        *,
        read_only: bool,
    ) -> None:
        if self._disk.list("journal"):
            raise DirectoryMismatch(str(directory), "one of the file modes", "acid")
        self._disk.make_directory("acid")
        self._check_manifest(directory, shard_count)
        self._loop = loop
        names = [f"acid/shard-{number:03d}" for number in range(shard_count)]
        for name in names:
            self._disk.make_directory(name)
        self._check_complete(names)
        self._ballast = Ballast(self._disk)
        self._is_read_only = read_only or isinstance(self._disk.refusal(), StorageReadOnly)
        self._shards = [
            Shard(
                self._disk,
                name,
                directory / name,
                loop,
                self._ballast,
                worker_factory,
                read_only=self._is_read_only,
            )
            for name in names
        ]
        self.blobs: Blobs = DiskBlobs(self._disk, sync=True)
        if not self._is_read_only:
            # From here on a missing `data.mdb` is a loss (`_check_complete`). LMDB itself would
            # make a new, empty one, and every stream of that shard would be gone without a word.
            self._disk.open(READY, create=True).close()
            self._disk.sync_directory("acid")
            self._disk.sync_directory("")
        self._read_executor = ThreadPoolExecutor(
            READ_THREADS_MAX, "headrace-cold-read", initializer=wait_briefly_for_descriptors
        )
        self._live_bytes = 0
        self.unrecovered: list[Unrecovered] = []
        self._is_closed = False
        self._disk_refusal: HeadraceError | None = None
        self.tick()

    def _check_manifest(self, directory: Path, shard_count: int) -> None:
        wanted = {"format": FORMAT, "shards": shard_count}
        present = self._disk.list("acid")
        if "manifest.json" not in present:
            # It is written before any shard is, and snapshots after those.
            if any(name.startswith("shard-") for name in present) or self._disk.list("snapshots"):
                raise StoredBytesUnreadable(MANIFEST, "the file is missing")
            self._write_manifest(orjson.dumps(wanted))
            return
        found = _read_manifest(self._disk)
        if found != wanted:
            raise DirectoryMismatch(str(directory), str(found), str(wanted))

    def _check_complete(self, shards: list[str]) -> None:
        """LMDB makes a file that is missing or empty: once all were there, that hides a loss."""
        if READY.removeprefix("acid/") not in self._disk.list("acid"):
            return
        for shard in shards:
            name = f"{shard}/{DATA}"
            if DATA not in self._disk.list(shard):
                raise StoredBytesUnreadable(name, "the file is missing")
            file = self._disk.open(name)
            size = file.size()
            file.close()
            if not size:
                raise StoredBytesUnreadable(name, "the file is empty")

    def _write_manifest(self, text: bytes) -> None:
        file = self._disk.open(f"{MANIFEST}.new", create=True)
        file.write(0, text)
        file.sync()
        file.close()
        self._disk.rename(f"{MANIFEST}.new", MANIFEST)
        self._disk.sync_directory("acid")

    def start(
        self,
        committed: Callable[[Sequence[Entry]], None],
        failed: Callable[[Sequence[Entry]], None],
        delayed: Delayed | None = None,
    ) -> None:
        for shard in self._shards:
            shard.committer.start(committed, failed, delayed)

    async def failed(self) -> None:
        """Returns never, or raises what a commit died of."""
        await asyncio.gather(*(shard.committer.failed() for shard in self._shards))

    def recover(self) -> Iterable[Recovered]:
        found = [(one, shard) for shard in self._shards for one in shard.recover()]
        # Ids grow, so a source comes before its forks.
        found.sort(key=lambda each: each[0].id)
        logs: dict[int, AcidLog] = {}
        for state, shard in found:
            if isinstance(state, Unrecovered):
                self.unrecovered.append(state)
                continue
            fork = state.config.fork
            if fork is not None and fork.source_id not in logs:
                error = Orphaned(f"Its source, {fork.request.source!r}, is missing or set aside.")
                self.unrecovered.append(
                    Unrecovered(state.id, state.name, error, fork.source_id, state.snapshot)
                )
                continue
            parent = logs[fork.source_id] if fork is not None else None
            log = logs[state.id] = AcidLog(state, shard, parent)
            self._live_bytes += log.stored_bytes
            yield Recovered(state, log)

    def take_documents(self) -> dict[str, bytes]:
        return dict(self._document_shard.documents())

    @property
    def last_id(self) -> int:
        return max(shard.last_id for shard in self._shards)

    def reserve_ids(self, id: int) -> None:
        self._document_shard.committer.add(ReservedId(id), None)

    @property
    def _document_shard(self) -> Shard:
        """The shard that has the documents."""
        return self._shards[0]

    def new_log(self, state: StreamState, source: Log | None) -> AcidLog:
        if source is None:
            # Only a new stream is placed by its name; `recover` takes each one from where it is.
            place = google_crc32c.value(state.name.encode()) % len(self._shards)
            return AcidLog(state, self._shards[place], None)
        assert isinstance(source, AcidLog), "a storage branches its own logs"
        return AcidLog(state, source.shard, source)

    def commit(self, log: Log, change: Change, entry: Entry | None) -> None:
        assert isinstance(log, AcidLog), "a storage commits to its own logs"
        try:
            self._commit(log, change, entry)
        except Exception as defect:
            # Memory has a change now that the shard will not have.
            log.shard.committer.fail(defect, [] if entry is None else [entry])

    def fail(self, defect: Exception) -> None:
        for shard in self._shards:
            shard.committer.fail(defect)

    def _commit(self, log: AcidLog, change: Change, entry: Entry | None) -> None:
        added = change.initial if isinstance(change, Created) else change
        if isinstance(change, Removed) and change.whole:
            self._live_bytes -= log.stored_bytes
        if isinstance(change, Reclaimed):
            self._live_bytes -= change.freed_bytes
            log.reclaim(change.retained_from)
        if isinstance(added, Appended):
            log.append(added)
            self._live_bytes += len(added.data)
            self._count_added(len(added.data))
        log.shard.add(log.state, change, entry)

    def _count_added(self, byte_count: int) -> None:
        """A second is long on a fast disk: look again after every so many bytes."""
        self._unchecked_bytes += byte_count
        if self._unchecked_bytes > SPACE_CHECK_BYTES:
            self.tick()

    def when_durable(
        self, log: Log, done: Callable[[], None], failed: Callable[[HeadraceError], None] = ignore
    ) -> None:
        assert isinstance(log, AcidLog), "a storage settles its own logs"
        log.shard.committer.when_durable(done, failed)

    def put_documents(self, documents: Documents) -> None:
        self._document_shard.put_documents(documents)

    def when_documents_durable(self, done: Callable[[], None], failed: Failed) -> None:
        self._document_shard.committer.when_durable(done, failed)

    def run_in_thread(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        if self._is_closed:
            return  # the client disconnected and the server is closing
        future = self._loop.run_in_executor(self._read_executor, work)
        future.add_done_callback(lambda finished: deliver_result(finished, done))

    @property
    def removal_refusal(self) -> HeadraceError | None:
        for shard in self._shards:
            if shard.committer.is_failed:
                return StorageFailed()
            if shard.committer.postponed is not None:
                return refusal_of(shard.committer.postponed.reason)
        return StorageReadOnly() if self._is_read_only else None

    @property
    def refusal(self) -> HeadraceError | None:
        return self.removal_refusal or self._disk_refusal

    def checks(self) -> Iterator[Check]:
        for shard in self._shards:
            for database in DATABASES:
                key: bytes | None = b""
                while key is not None:
                    part = _PartCheck(shard, database, key)
                    yield part
                    key = part.next_key

    def commits(self) -> Commits:
        every = [shard.committer.commits for shard in self._shards]
        return Commits(
            sum(one.batches for one in every),
            sum(one.changes for one in every),
            sum(one.seconds for one in every),
        )

    def tick(self) -> None:
        """LMDB keeps the room of what was deleted, and uses it again: that is room, too."""
        self._unchecked_bytes = 0
        refusal = self._disk.refusal()
        if isinstance(refusal, InsufficientStorage):
            used_bytes = sum(shard.used_bytes() for shard in self._shards)
            reusable_bytes = used_bytes - int(LIVE_BYTES_FACTOR * self._live_bytes)
            if reusable_bytes > refusal.reserve_bytes:
                refusal = None
        self._disk_refusal = refusal
        for shard in self._shards:
            shard.committer.retry()
        if refusal is None and not self._ballast.is_held and not self._is_read_only:
            self.run_in_thread(self._ballast.fill, ignore)

    def close(self) -> None:
        self._is_closed = True
        self._read_executor.shutdown()
        for shard in self._shards:
            shard.close()
        self._disk.close()

    def abandon(self) -> None:
        self.close()
