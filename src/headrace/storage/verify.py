"""Looking at a data directory that no server has open: is every stored byte what was written?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb

from headrace.errors import HeadraceError, StoredBytesDamaged, StoredBytesUnreadable
from headrace.protocol.stream import Snapshot, StreamState
from headrace.storage import acid_count
from headrace.storage import acid_records as records
from headrace.storage.acid_count import CountBeside
from headrace.storage.blobs import DiskBlobs
from headrace.storage.blobs import path as blob_path
from headrace.storage.catalog import Catalog
from headrace.storage.catalog_entries import CatalogEntry, sizes_of, state_of
from headrace.storage.disk import Disk, RealDisk
from headrace.storage.frames import AppendFrame, CreateFrame, Frame, PublishFrame, RemoveFrame
from headrace.storage.journal import Journal
from headrace.storage.records import decode_state, snapshot_of
from headrace.storage.stream_files import Sizes, StreamReader
from headrace.storage.tailed import base_of

READ_BYTES: Final = 1024 * 1024


class Report(NamedTuple):
    """`findings` are sentences, each naming a file and a place in it."""

    findings: list[str]
    streams: int
    data_bytes: int


def verify(directory: Path) -> Report | None:
    """Check a data directory of any durable mode; None where there is none."""
    disk = RealDisk(directory)
    try:
        is_acid, is_files = bool(disk.list("acid")), bool(disk.list("journal"))
        if not is_acid and not is_files:
            return None
        disk.lock()
        return _verify_acid(directory, disk) if is_acid else verify_files(disk)
    except OSError as error:
        return Report([_unreadable(error)], 0, 0)
    finally:
        disk.close()


# -- the file modes ----------------------------------------------------------------------------


def verify_files(disk: Disk) -> Report:
    """The catalog, every block of every stream, and the journal that is not in them yet."""
    findings: list[str] = []
    entries: list[CatalogEntry] = []
    streams: set[int] = set()
    data_bytes = 0
    snapshots: dict[int, Snapshot | None] = {}
    try:
        catalog = Catalog(disk)
        entries = list(catalog.load().streams.values())
        streams = {entry.id for entry in entries}
        snapshots = {entry.id: _snapshot_of(state_of(entry)) for entry in entries}
        for _, frame in Journal(disk).scan(catalog.current.applied_lsn):
            data_bytes += _count(frame, streams)
            _note_snapshot(frame, snapshots)
    except HeadraceError as damage:
        findings.append(damage.detail)
    except OSError as error:
        findings.append(_unreadable(error))
    for entry in entries:
        state = state_of(entry)
        findings += _check_stream(disk, state, sizes_of(entry))
        data_bytes += state.tail.bytes - max(base_of(state).bytes, state.kept.bytes)
    try:
        findings += _check_snapshots(disk, snapshots.values())
    except OSError as error:
        findings.append(_unreadable(error))
    return Report(findings, len(streams), data_bytes)


def _reason(error: OSError) -> str:
    return f"{error.filename or 'a file'}: {error.strerror or error}"


def _unreadable(error: OSError) -> str:
    return f"A file cannot be read: {_reason(error)}."


def _snapshot_of(state: StreamState) -> Snapshot | None:
    """What must be readable: the snapshot of a deleted stream may be gone."""
    return None if state.deleted else state.snapshot


def _note_snapshot(frame: Frame, snapshots: dict[int, Snapshot | None]) -> None:
    """Which snapshot a stream has after `frame`."""
    if isinstance(frame, CreateFrame | PublishFrame):
        snapshots[frame.stream_id] = snapshot_of(frame.snapshot)
    elif isinstance(frame, RemoveFrame):
        snapshots.pop(frame.stream_id, None)


def _check_snapshots(disk: Disk, snapshots: Iterable[Snapshot | None]) -> Iterator[str]:
    by_id = {found.blob_id: found for found in snapshots if found is not None}
    if not by_id:
        return
    blobs = DiskBlobs(disk, sync=False)
    for blob_id, snapshot in sorted(by_id.items()):
        size = snapshot.size_bytes
        try:
            data = blobs.read(blob_id, size, 0, size)
        except StoredBytesDamaged as damage:
            yield damage.detail
            continue
        except OSError as error:
            unreadable = error.strerror or str(error)
            yield StoredBytesUnreadable(blob_path(blob_id), unreadable).detail
            continue
        if sha256(data).digest() != snapshot.digest:
            yield StoredBytesDamaged(blob_path(blob_id), "0").detail


def _count(frame: Frame, streams: set[int]) -> int:
    """Which streams there are after `frame`; the data bytes it adds."""
    if isinstance(frame, CreateFrame):
        streams.add(frame.stream_id)
        return len(frame.initial.data)
    if isinstance(frame, RemoveFrame) and frame.whole:
        streams.discard(frame.stream_id)
    return len(frame.data) if isinstance(frame, AppendFrame) else 0


def _check_stream(disk: Disk, state: StreamState, sizes: Sizes) -> Iterator[str]:
    reader = StreamReader(disk, state.id, base_of(state).bytes, sizes)
    try:
        for damage in reader.check(state.tail):
            yield damage.detail
    except FileNotFoundError as missing:
        yield f"A file of the stream {state.name!r} is missing: {missing.filename}."
    except OSError as error:
        yield f"A file of the stream {state.name!r} cannot be read: {_reason(error)}."
    finally:
        reader.close()


# -- acid --------------------------------------------------------------------------------------


def _verify_acid(directory: Path, disk: Disk) -> Report:
    """Every value of every shard, and that each stream's bytes follow one another."""
    findings: list[str] = []
    streams = data_bytes = 0
    snapshots: list[Snapshot | None] = []
    for path in sorted((directory / "acid").glob("shard-*")):
        try:
            _read_through(disk, f"{path.relative_to(directory)}/data.mdb")
            with lmdb.open(
                str(path), readonly=True, lock=False, max_dbs=len(records.DATABASES)
            ) as environment:
                name = str(path.relative_to(directory))
                shard = _ShardCheck(environment, name)
                findings += shard.findings()
                findings += _check_count(disk, name, shard.commits)
                streams += shard.streams
                data_bytes += shard.data_bytes
                snapshots += shard.snapshots
        except lmdb.Error as error:
            findings.append(f"{path.relative_to(directory)} cannot be read: {error}.")
        except OSError as error:
            findings.append(_unreadable(error))
    findings += _check_snapshots(disk, snapshots)
    return Report(findings, streams, data_bytes)


def _read_through(disk: Disk, name: str) -> None:
    """LMDB maps its file: a page of it that cannot be read would end the process."""
    file = disk.open(name)
    try:
        for offset in range(0, file.size(), READ_BYTES):
            file.read(offset, READ_BYTES)
    finally:
        file.close()


def _check_count(disk: Disk, shard: str, commits: int) -> Iterator[str]:
    if acid_count.FILE not in disk.list(shard):
        return
    beside = CountBeside(disk, shard)
    try:
        beside.check(commits)
    except StoredBytesDamaged as damage:
        yield damage.detail
    finally:
        beside.close()


class _ShardCheck:
    def __init__(self, environment: Any, file: str) -> None:
        self._environment = environment
        self._file = file
        self.streams = 0
        self.data_bytes = 0
        self.commits = 0
        self.snapshots: list[Snapshot | None] = []

    def findings(self) -> Iterator[str]:
        with self._environment.begin() as transaction:
            databases = {
                name: self._environment.open_db(name, transaction, create=False)
                for name in records.present(transaction)
            }
            for name, database in databases.items():
                yield from self._check_values(transaction, name.decode(), database)
            if b"commits" in databases:
                with suppress(StoredBytesDamaged):  # reported just now
                    self.commits = acid_count.get(transaction, databases[b"commits"])
            yield from self._check_order(transaction, databases)

    def _check_values(self, transaction: Any, name: str, database: Any) -> Iterator[str]:
        for key, value in transaction.cursor(database):
            try:
                records.unseal(name, key, value)
            except StoredBytesDamaged as damage:
                yield f"{self._file}: {damage.detail}"

    def _check_order(self, transaction: Any, databases: dict[bytes, Any]) -> Iterator[str]:
        for key, value in transaction.cursor(databases[b"streams"]):
            self.streams += 1
            head = transaction.get(key, db=databases[b"heads"])
            if head is None:
                yield f"{self._file}: the stream {key.hex()} has no head."
                continue
            try:
                stream = records.unseal("streams", key, value)
                where = records.unseal("heads", key, head)
                state = decode_state(int.from_bytes(key, "big"), stream, where)
                first = max(base_of(state), state.kept)
                end = records.walk(transaction.cursor(databases[b"data"]), state.id, first)
            except StoredBytesDamaged:
                continue  # reported where the values were checked
            self.data_bytes += state.tail.bytes - first.bytes
            self.snapshots.append(_snapshot_of(state))
            if end != state.tail:
                yield f"{self._file}: {state.name!r} ends at {end}, not at {state.tail}."
