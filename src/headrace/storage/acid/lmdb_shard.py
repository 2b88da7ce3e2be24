"""One shard of acid: an LMDB environment and the thread that writes to it.

A start goes through this order, each step before anything relies on it:

    1. the file's size is compared with LMDB's count of pages, before LMDB maps it (lmdb_pages)
    2. LMDB opens it and takes the newer of its two roots; a sync makes durable what a kill left
       in the page cache
    3. the count of transactions is compared with the file next to it (rollback_guard)
    4. `recover` reads every stream's records, and gathers the deletes that were not finished

`_write`, `_commit` and the fields they change (`_count`, `last_id`, `_backlog`) belong to the
committer's thread once it runs. `read` and `check_part` run on any thread, in transactions of their
own: LMDB lets them see the last commit and never makes them wait for the writer.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import lmdb

from headrace.errors import (
    HeadraceError,
    InsufficientStorage,
    StoredBytesDamaged,
    StoredBytesUnreadable,
)
from headrace.protocol.offsets import Position
from headrace.protocol.producers import ProducerState
from headrace.protocol.stream import StreamState
from headrace.storage.acid import rollback_guard, schema
from headrace.storage.acid.lmdb_pages import check_file
from headrace.storage.acid.rollback_guard import RollbackGuard
from headrace.storage.acid.transaction_writer import (
    DeleteBacklog,
    PurgeJob,
    ReservedId,
    StreamChange,
    TransactionWriter,
    TrimJob,
    Work,
)
from headrace.storage.ballast import Ballast
from headrace.storage.base import (
    CHECK_BYTES,
    Change,
    CheckResult,
    Created,
    Documents,
    Entry,
    Postponed,
    Published,
    Range,
    Unrecovered,
)
from headrace.storage.committer import Committer
from headrace.storage.disk import Disk, suppress_transient
from headrace.storage.records import (
    decode_state,
    decode_stream,
    head_of,
)
from headrace.storage.worker_thread import WorkerFactory, WorkerThread

DATA: Final = "data.mdb"
MAP_BYTES: Final = 1 << 38  # address space, not memory or disk
FULL_BYTES: Final = 5 * 1024 * 1024  # no more is left of a full disk once the ballast is given up


_GO_ON: Final[Documents] = {}  # changes nothing, and has a batch written


def _last_id_in(batch: list[Work]) -> int:
    """The highest id that a stream or blob of this batch begins to use."""
    highest = 0
    for work in batch:
        if isinstance(work, ReservedId):
            highest = max(highest, work.id)
        elif isinstance(work, StreamChange):
            change = work.change
            if isinstance(change, Created):
                highest = max(highest, work.state.id)
            elif isinstance(change, Published):
                highest = max(highest, change.snapshot.blob_id)
    return highest


@contextmanager
def translate_lmdb_errors(path: Path) -> Iterator[None]:
    """What LMDB makes of its own pages when they are damaged, in our words."""
    try:
        yield
    except lmdb.Error as error:
        raise StoredBytesUnreadable(str(path), str(error)) from error


def _transient_reason(error: lmdb.Error, path: Path) -> OSError | None:
    """LMDB has an exception class for a full disk; other disk errors are only in the message."""
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        is_meant = number == errno.ENOSPC and isinstance(error, lmdb.DiskError)
        if is_meant or os.strerror(number) in str(error):
            return OSError(number, os.strerror(number), str(path))
    return None


class Shard:
    def __init__(
        self,
        disk: Disk,
        name: str,
        path: Path,
        loop: asyncio.AbstractEventLoop,
        ballast: Ballast,
        worker_factory: WorkerFactory = WorkerThread,
        *,
        read_only: bool = False,
    ) -> None:
        """`path` is where `name` is on `disk`: LMDB makes its own file calls."""
        self._loop = loop
        self._disk = disk
        self._path = path
        # What is left to delete; of the committer's thread, once that runs.
        self._backlog: DeleteBacklog = deque()
        self._ballast = ballast
        self._is_read_only = read_only
        if DATA in disk.list(name):
            # Before LMDB maps the file: a page behind its end would end the process with SIGBUS.
            check_file(disk, f"{name}/{DATA}")
        self._guard = RollbackGuard(disk, name)
        with translate_lmdb_errors(path):
            self._environment = lmdb.open(
                str(path),
                map_size=MAP_BYTES,
                max_dbs=len(schema.DATABASES),
                max_readers=64,
                mode=0o600,
                readonly=read_only,
                lock=not read_only,
            )
            if not read_only:
                # What a kill left in the page cache looks committed: make it so before it is
                # served.
                self._environment.sync(True)
            self._databases = self._open_databases()
            self._count = self.last_id = 0
            if b"commits" in self._databases:
                with self._environment.begin() as transaction:
                    commits = self._databases[b"commits"]
                    self._count = rollback_guard.get(transaction, commits)
                    self.last_id = rollback_guard.get_last_id(transaction, commits)
        try:
            self._guard.check(self._count)
        except StoredBytesDamaged:
            self._environment.close()
            raise
        if not read_only:
            with suppress_transient():
                self._guard.write(self._count)
                self._guard.sync()
        self.committer: Committer[Work] = Committer(
            loop, "headrace-commit", self._write, worker_factory
        )

    def _open_databases(self) -> dict[bytes, Any]:
        """All of them; of a disk that is read-only, those that an older server has made."""
        names = list(schema.DATABASES)
        if self._is_read_only:
            with self._environment.begin() as transaction:
                names = schema.existing_databases(transaction)
        create = not self._is_read_only
        return {name: self._environment.open_db(name, create=create) for name in names}

    def add(self, state: StreamState, change: Change, entry: Entry | None) -> None:
        self.committer.add(StreamChange(state, change, head_of(state)), entry)

    def put_documents(self, documents: Documents) -> None:
        self.committer.add(documents, None)

    def _write(self, batch: list[Work]) -> None:
        """On the committer's thread: one transaction, synced when this returns.

        LMDB writes new pages and then its root, so a transaction that finds no room has changed
        nothing, and is tried again as a whole.
        """
        if not batch:
            return
        if self._is_read_only:
            raise Postponed(OSError(errno.EROFS, os.strerror(errno.EROFS), str(self._path)))
        try:
            self._commit(batch)
        except lmdb.Error as error:
            reason = _transient_reason(error, self._path) or self._short_write(error)
            if reason is None:
                raise
            if self._ballast.release():
                self._write(batch)
                return
            raise Postponed(reason) from error

    def _short_write(self, error: lmdb.Error) -> OSError | None:
        """LMDB says EIO where the last bytes of a disk took a part of what it wrote.

        Its root was not written then, so that all of the transaction is written again.
        """
        if os.strerror(errno.EIO) not in str(error):
            return None
        refusal = self._disk.refusal()
        if not isinstance(refusal, InsufficientStorage) or refusal.free_bytes > FULL_BYTES:
            return None
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def _commit(self, batch: list[Work]) -> None:
        with self._environment.begin(write=True) as transaction:
            commits = self._databases[b"commits"]
            # A copy: a transaction that finds no room leaves the backlog as it was.
            backlog = self._backlog.copy()
            TransactionWriter(transaction, self._databases, backlog).write(batch)
            last_id = max(self.last_id, _last_id_in(batch))
            if last_id > self.last_id:
                rollback_guard.put_last_id(transaction, commits, last_id)
            # In the same transaction as what it counts, so that the two cannot disagree.
            rollback_guard.put(transaction, commits, self._count + 1)
        # Here the transaction is durable, and what follows may rely on it. If it failed, none of
        # these has changed, and the batch is written again as a whole.
        self._count += 1
        self.last_id = last_id
        self._backlog = backlog
        with suppress_transient():
            # Not before the transaction: after a crash in between, a count that is ahead would read
            # as a rollback, and a sound shard would not start.
            self._guard.write(self._count)
        if self._backlog:
            # An empty batch carries the deletes on where no append does.
            self._loop.call_soon_threadsafe(self.committer.add, _GO_ON, None)

    def used_bytes(self) -> int:
        """What the environment's file takes on disk."""
        pages: int = self._environment.info()["last_pgno"] + 1
        page_bytes: int = self._environment.stat()["psize"]
        return pages * page_bytes

    def close(self) -> None:
        self.committer.close()
        self._environment.close()
        self._guard.close()

    # -- reading ---------------------------------------------------------------------------

    def read(
        self, stream_id: int, start: Position, limit: Position, bytes_max: int
    ) -> Range | None:
        with (
            translate_lmdb_errors(self._path),
            self._environment.begin(buffers=True) as transaction,
        ):
            cursor = transaction.cursor(self._databases[b"data"])
            return schema.read_range(cursor, stream_id, start, limit, bytes_max)

    def recover(self) -> Iterator[StreamState | Unrecovered]:
        """Damage that leaves open which stream it hit stops the start: no name may seem free."""
        count = 0
        with translate_lmdb_errors(self._path), self._environment.begin() as transaction:
            for key, value in transaction.cursor(self._databases[b"streams"]):
                count += 1
                stream = schema.checked_payload("streams", key, value)
                try:
                    found: StreamState | Unrecovered = self._recover_one(transaction, key, stream)
                # These are of the machine or of the whole environment. Set aside one by one, they
                # would take every stream that follows.
                except (MemoryError, OSError, lmdb.Error):
                    raise
                except Exception as error:
                    found = _unrecovered(key, stream, error)
                yield found
            if b"removed" in self._databases:  # not in an old directory that is only read
                for key, value in transaction.cursor(self._databases[b"removed"]):
                    schema.checked_payload("removed", key, value)
                    self._backlog.append(PurgeJob(int.from_bytes(key, "big")))
            if self._backlog:
                self.committer.add(_GO_ON, None)
            for name in schema.STATE_DATABASES:
                # Each stream has one record in each. LMDB's own pages have no checksum: if a part
                # of one tree is missing, it shows here.
                if transaction.stat(self._databases[name])["entries"] != count:
                    raise StoredBytesDamaged(f"{self._path.name}/{name.decode()}", "its count")

    def _recover_one(self, transaction: Any, key: bytes, stream: bytes) -> StreamState:
        head = transaction.get(key, db=self._databases[b"heads"])
        if head is None:
            raise StoredBytesDamaged("heads", key.hex())
        stream_id = int.from_bytes(key, "big")
        state = decode_state(stream_id, stream, schema.checked_payload("heads", key, head))
        self._recover_producers(transaction, key, state)
        if state.retained_from.bytes:
            # The run before this one may have stopped in the middle of it.
            self._backlog.append(TrimJob(state.id, state.retained_from.bytes))
        return state

    def documents(self) -> Iterator[tuple[str, bytes]]:
        with translate_lmdb_errors(self._path), self._environment.begin() as transaction:
            for key, value in transaction.cursor(self._databases[b"documents"]):
                yield schema.decode_document(schema.checked_payload("documents", key, value))

    def check_part(self, name: bytes, first: bytes) -> tuple[bytes | None, CheckResult]:
        """Values of a database from the key `first` on; where to go on, and what was found."""
        checked = 0
        damage: list[HeadraceError] = []
        with translate_lmdb_errors(self._path), self._environment.begin() as transaction:
            cursor = transaction.cursor(self._databases[name])
            found = cursor.set_range(first)
            while found and checked < CHECK_BYTES:
                key, value = cursor.item()
                checked += len(key) + len(value)
                try:
                    schema.checked_payload(name.decode(), key, value)
                except StoredBytesDamaged as rot:
                    damage.append(rot)
                found = cursor.next()
            return cursor.key() if found else None, CheckResult(checked, damage)

    def _recover_producers(self, transaction: Any, prefix: bytes, state: StreamState) -> None:
        receipts = self._with_prefix(transaction, b"receipts", prefix)
        by_producer: dict[bytes, list[bytes]] = {}
        for key, payload in receipts:
            # The last byte is the slot: what is before it is the producer's key.
            by_producer.setdefault(key[:-1], []).append(payload)
        for key, payload in self._with_prefix(transaction, b"producers", prefix):
            record = schema.decode_producer(payload)
            producer = ProducerState(record.epoch, record.seq, [])
            schema.restore_receipts(producer, by_producer.get(key, []))
            if state.producers is None:
                state.producers = {}
            state.producers[record.id] = producer

    def _with_prefix(
        self, transaction: Any, name: bytes, prefix: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        cursor = transaction.cursor(self._databases[name])
        found = cursor.set_range(prefix)
        while found and cursor.key().startswith(prefix):
            yield cursor.key(), schema.checked_payload(name.decode(), cursor.key(), cursor.value())
            found = cursor.next()


def _unrecovered(key: bytes, stream: bytes, error: Exception) -> Unrecovered:
    record = decode_stream(stream)
    source_id = None if record.fork is None else record.fork.source_id
    stream_id = int.from_bytes(key, "big")
    return Unrecovered(stream_id, record.name, error, source_id, is_known=False)
