"""`headrace verify` for acid: every value of every shard, and the order of each stream's chunks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import lmdb

from headrace.errors import StoredBytesDamaged
from headrace.protocol.stream import Snapshot
from headrace.storage.acid import rollback_guard, schema
from headrace.storage.acid.rollback_guard import CountBeside
from headrace.storage.disk import Disk
from headrace.storage.records import decode_state
from headrace.storage.tiered_log import base_of
from headrace.storage.verify_report import (
    Report,
    check_snapshots,
    live_snapshot,
    unreadable_file,
)

READ_BYTES: Final = 1024 * 1024


def verify_acid(directory: Path, disk: Disk) -> Report:
    """Every value of every shard, and that each stream's bytes follow one another."""
    findings: list[str] = []
    streams = data_bytes = 0
    snapshots: list[Snapshot | None] = []
    for path in sorted((directory / "acid").glob("shard-*")):
        try:
            _read_through(disk, f"{path.relative_to(directory)}/data.mdb")
            with lmdb.open(
                str(path), readonly=True, lock=False, max_dbs=len(schema.DATABASES)
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
            findings.append(unreadable_file(error))
    findings += check_snapshots(disk, snapshots)
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
    if rollback_guard.FILE not in disk.list(shard):
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
                for name in schema.present(transaction)
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
                schema.unseal(name, key, value)
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
                stream = schema.unseal("streams", key, value)
                where = schema.unseal("heads", key, head)
                state = decode_state(int.from_bytes(key, "big"), stream, where)
                first = max(base_of(state), state.kept)
                end = schema.walk(transaction.cursor(databases[b"data"]), state.id, first)
            except StoredBytesDamaged:
                continue  # reported where the values were checked
            self.data_bytes += state.tail.bytes - first.bytes
            self.snapshots.append(live_snapshot(state))
            if end != state.tail:
                yield f"{self._file}: {state.name!r} ends at {end}, not at {state.tail}."
