"""Files of an Iceberg table: small ones merged, and those that no kept snapshot needs removed.

pyiceberg forgets snapshots and deletes no files. A file is removed if no snapshot names it and it
is older than the snapshots that are kept, so one that is being written stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.spark.lake.table_commits import partitions_of

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table

_SMALL_BYTES_MAX: Final = 16 * 1024 * 1024
_MERGED_BYTES_MAX: Final = 64 * 1024 * 1024  # of files on the disk; in memory several times that
_KEPT: Final = timedelta(days=7)  # as vacuum keeps the files of a Delta table
_SUFFIXES: Final = (".parquet", ".avro")


def merge_small(table: Table) -> None:
    """One commit that replaces small files by one file with their rows."""
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    if partitions_of(table) or table.current_snapshot() is None:
        return  # a table of somebody else's making: its files are theirs to lay out
    for tasks in _groups(table):
        rows = pa.concat_tables([whole_file(table, task) for task in tasks])
        with table.transaction() as commit, commit.update_snapshot().overwrite() as swap:
            for task in tasks:
                swap.delete_data_file(task.file)
            for file in _dataframe_to_data_files(commit.table_metadata, rows, table.io):
                swap.append_data_file(file)


def _groups(table: Table) -> Iterator[list[FileScanTask]]:
    group: list[FileScanTask] = []
    size = 0
    for task in table.scan().plan_files():
        if task.file.file_size_in_bytes > _SMALL_BYTES_MAX:
            continue
        group.append(task)
        size += task.file.file_size_in_bytes
        if size >= _MERGED_BYTES_MAX:
            yield group
            group, size = [], 0
    if len(group) > 1:
        yield group


def whole_file(table: Table, task: FileScanTask) -> pa.Table:
    """All rows of a file that no other engine deleted, with today's columns."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow

    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return scan.to_table([task]).cast(schema)


def remove_old(table: Table, place: Path, now: datetime | None = None) -> None:
    """Forget the snapshots that are older than a week, and remove the files that only they had."""
    before = (now or datetime.now(UTC)) - _KEPT
    oldest = min((each.timestamp_ms for each in table.snapshots()), default=None)
    if oldest is None or oldest >= before.timestamp() * 1000:
        return
    table.maintenance.expire_snapshots().older_than(before).commit()
    used = _used(table)
    for path in place.rglob("*"):
        is_old = path.suffix in _SUFFIXES and path.stat().st_mtime < before.timestamp()
        if is_old and path.name not in used:
            path.unlink(missing_ok=True)


def _used(table: Table) -> set[str]:
    """The names of what the kept snapshots have: their lists, manifests and files. Names, which
    are random, because a place can be written in several ways."""
    found: set[str] = set()
    for snapshot in table.refresh().snapshots():
        found.add(_name(snapshot.manifest_list))
        for manifest in snapshot.manifests(table.io):
            name = _name(manifest.manifest_path)
            if name not in found:
                found.add(name)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                found.update(_name(entry.data_file.file_path) for entry in entries)
    return found


def _name(path: str) -> str:
    return path.rpartition("/")[2]
