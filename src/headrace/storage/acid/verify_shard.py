"""Checks shards in a process of its own, because LMDB may end the process that reads them.

    python -m headrace.storage.acid.verify_shard DIRECTORY SHARD...

Standard output gets one JSON value per line (`Line`), flushed at once: so the parent process
knows which shard the child was reading when it died, and keeps what it found before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import lmdb
import msgspec

from headrace.errors import HeadraceError, StoredBytesDamaged
from headrace.storage.acid import rollback_guard, schema
from headrace.storage.acid.lmdb_pages import check_file, check_free_list
from headrace.storage.acid.rollback_guard import RollbackGuard
from headrace.storage.disk import Disk, RealDisk
from headrace.storage.records import SnapshotRecord, decode_state, snapshot_record
from headrace.storage.tiered_log import own_start
from headrace.storage.verify_report import live_snapshot, unreadable_file

READ_BYTES: Final = 1024 * 1024


class Started(msgspec.Struct, tag="started"):
    shard: str


class Finding(msgspec.Struct, tag="finding"):
    sentence: str


class Finished(msgspec.Struct, tag="finished"):
    streams: int
    data_bytes: int
    snapshots: list[SnapshotRecord | None]


Line = Started | Finding | Finished


def check_shard(directory: Path, disk: Disk, name: str) -> Iterator[Line]:
    """`name` is the shard's directory below `directory`, which `disk` shows."""
    yield Started(name)
    file = f"{name}/data.mdb"
    try:
        _read_through(disk, file)
        check_file(disk, file)
        check_free_list(disk, file)
        with lmdb.open(
            str(directory / name), readonly=True, lock=False, max_dbs=len(schema.DATABASES)
        ) as environment:
            shard = _ShardCheck(environment, name)
            for sentence in shard.findings():
                yield Finding(sentence)
            for sentence in _check_count(disk, name, shard.commits):
                yield Finding(sentence)
            yield Finished(shard.streams, shard.data_bytes, shard.snapshots)
    except HeadraceError as damage:
        yield Finding(damage.detail)
    except lmdb.Error as error:
        yield Finding(f"{name} cannot be read: {error}.")
    except OSError as error:
        yield Finding(unreadable_file(error))


def _read_through(disk: Disk, name: str) -> None:
    """LMDB maps its file: a page of it that cannot be read would end the process."""
    file = disk.open(name)
    try:
        for offset in range(0, file.size(), READ_BYTES):
            file.read(offset, READ_BYTES)
    finally:
        file.close()


def _check_count(disk: Disk, shard: str, commits: int) -> Iterator[str]:
    if rollback_guard.FILE not in disk.list(shard):
        return
    guard = RollbackGuard(disk, shard)
    try:
        guard.check(commits)
    except StoredBytesDamaged as damage:
        yield damage.detail
    finally:
        guard.close()


class _ShardCheck:
    def __init__(self, environment: Any, file: str) -> None:
        self._environment = environment
        self._file = file
        self.streams = 0
        self.data_bytes = 0
        self.commits = 0
        self.snapshots: list[SnapshotRecord | None] = []

    def findings(self) -> Iterator[str]:
        with self._environment.begin() as transaction:
            databases = {
                name: self._environment.open_db(name, transaction, create=False)
                for name in schema.existing_databases(transaction)
            }
            for name, database in databases.items():
                yield from self._check_values(transaction, name.decode(), database)
            if b"commits" in databases:
                with suppress(StoredBytesDamaged):  # reported just now
                    self.commits = rollback_guard.get(transaction, databases[b"commits"])
            yield from self._check_order(transaction, databases)

    def _check_values(self, transaction: Any, name: str, database: Any) -> Iterator[str]:
        for key, value in transaction.cursor(database):
            try:
                schema.checked_payload(name, key, value)
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
                stream = schema.checked_payload("streams", key, value)
                where = schema.checked_payload("heads", key, head)
                state = decode_state(int.from_bytes(key, "big"), stream, where)
                first = max(own_start(state), state.retained_from)
                end = schema.contiguous_end(transaction.cursor(databases[b"data"]), state.id, first)
            except StoredBytesDamaged:
                continue  # reported where the values were checked
            self.data_bytes += state.tail.bytes - first.bytes
            self.snapshots.append(snapshot_record(live_snapshot(state)))
            if end != state.tail:
                yield f"{self._file}: {state.name!r} ends at {end}, not at {state.tail}."


def main(directory: Path, shards: list[str]) -> None:
    disk = RealDisk(directory)
    for name in shards:
        for line in check_shard(directory, disk, name):
            sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
