"""Looking at a data directory that no server has open: is every stored byte what was written?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from headrace.errors import StoredBytesDamaged
from headrace.storage import acid_records as records
from headrace.storage.disk import RealDisk
from headrace.storage.records import decode_state


class Finding(NamedTuple):
    """Something that is not as it was written."""

    file: str
    what: str


class Report(NamedTuple):
    findings: list[Finding]
    streams: int
    data_bytes: int


def verify_acid(directory: Path) -> Report:
    """Check every value of every shard, and that each stream's bytes follow one another."""
    disk = RealDisk(directory)
    disk.lock()
    try:
        findings: list[Finding] = []
        streams = data_bytes = 0
        for path in sorted((directory / "acid").glob("shard-*")):
            with lmdb.open(
                str(path), readonly=True, lock=False, max_dbs=len(records.DATABASES)
            ) as environment:
                shard = ShardCheck(environment, str(path.relative_to(directory)))
                findings += shard.findings()
                streams += shard.streams
                data_bytes += shard.data_bytes
        return Report(findings, streams, data_bytes)
    finally:
        disk.close()


class ShardCheck:
    def __init__(self, environment: Any, file: str) -> None:
        self._environment = environment
        self._file = file
        self.streams = 0
        self.data_bytes = 0

    def findings(self) -> Iterator[Finding]:
        with self._environment.begin() as transaction:
            databases = {
                name: self._environment.open_db(name, transaction, create=False)
                for name in records.DATABASES
            }
            for name, database in databases.items():
                yield from self._check_values(transaction, name.decode(), database)
            yield from self._check_order(transaction, databases)

    def _check_values(self, transaction: Any, name: str, database: Any) -> Iterator[Finding]:
        for key, value in transaction.cursor(database):
            try:
                records.unseal(name, key, value)
            except StoredBytesDamaged as damage:
                yield Finding(self._file, damage.detail)

    def _check_order(self, transaction: Any, databases: dict[bytes, Any]) -> Iterator[Finding]:
        for key, value in transaction.cursor(databases[b"streams"]):
            self.streams += 1
            head = transaction.get(key, db=databases[b"heads"])
            if head is None:
                yield Finding(self._file, f"stream {key.hex()} has no head")
                continue
            try:
                stream, where = (
                    records.unseal("streams", key, value),
                    records.unseal("heads", key, head),
                )
                state = decode_state(int.from_bytes(key, "big"), stream, where)
                cursor = transaction.cursor(databases[b"data"])
                first = state.config.fork.point if state.config.fork else state.floor
                end = records.walk(cursor, state.id, first)
            except StoredBytesDamaged:
                continue  # reported where the values were checked
            self.data_bytes += state.tail.bytes - first.bytes
            if end != state.tail:
                yield Finding(
                    self._file, f"stream {state.name!r} ends at {end}, not at {state.tail}"
                )
