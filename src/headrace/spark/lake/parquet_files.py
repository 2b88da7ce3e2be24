"""Parquet files of one task: one per combination of partition values, rows in the order they came.

Directories are named after partition values, as Hive does it: both table formats keep the values
in their metadata, but some readers of Delta tables, and all that look at files alone, go by names.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.spark.lake.delta_stats import delta_stats
from headrace.spark.object_store import S3Path
from headrace.spark.places import Place

ROWS_PER_GROUP: Final = 20_000  # a reader skips whole groups: Arrow's 1,048,576 hold everything
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_DIRECTORY_BYTES_MAX: Final = 255  # of one name, in every usual file system


class LakeError(RuntimeError):
    """The table and what is to be written do not fit; the message says how."""


@dataclass(frozen=True)
class LakeFile:
    """A written file: its path below the table's data directory, its size, what is in it."""

    name: str
    size_bytes: int
    rows: int
    partition: tuple[Any, ...]
    stats: str  # as Delta's log keeps them


def write_files(
    directory: Place,
    prefix: str,
    batches: Sequence[pa.RecordBatch],
    partition_by: Sequence[str],
    *,
    keep_partition_columns: bool,
) -> list[LakeFile]:
    """Write what a task holds: all of it, or nothing stays."""
    if not batches:
        return []
    table = pa.Table.from_batches(batches)
    written: list[LakeFile] = []
    try:
        for number, (values, part) in enumerate(_parts(table, partition_by)):
            kept = part if keep_partition_columns else part.drop_columns(list(partition_by))
            place = directory_of(partition_by, values)
            name = f"{place}{prefix}-{number:05d}-{uuid.uuid4().hex}.parquet"
            written.append(_write(directory, name, kept, values))
    except OSError as error:
        remove_files(directory, written)
        raise LakeError(no_place(directory, error)) from error
    return written


def directory_of(names: Sequence[str], values: Sequence[Any]) -> str:
    """Such as `day=2026-11-18/shard=3/`; nothing where a name is too long for a file system."""
    parts = [
        f"{quote(name, safe='')}={quote(partition_text(value) or _NO_VALUE, safe='')}"
        for name, value in zip(names, values, strict=True)
    ]
    if any(len(part) > _DIRECTORY_BYTES_MAX for part in parts):
        return ""
    return "".join(f"{part}/" for part in parts)


def partition_text(value: Any) -> str | None:
    """A partition value as Delta's log writes it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    return value.isoformat() if isinstance(value, date) else str(value)


def no_place(directory: Place, error: OSError) -> str:
    # The table library gives no number, only what the system says.
    is_full = error.errno == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(error)
    problem = "has no room" if is_full else f"cannot be written ({' '.join(str(error).split())})"
    return f"{directory} {problem}. Nothing of this batch is in; it comes again at the next start."


def remove_files(directory: Place, files: Sequence[LakeFile]) -> None:
    """Files of an attempt that did not count."""
    for file in files:
        (directory / file.name).unlink(missing_ok=True)


def _write(directory: Place, name: str, table: pa.Table, values: tuple[Any, ...]) -> LakeFile:
    size_bytes = _write_parquet(directory / name, table)
    return LakeFile(name, size_bytes, table.num_rows, values, delta_stats(table))


def _write_parquet(path: Place, table: pa.Table) -> int:
    """The size of the file."""
    if isinstance(path, S3Path):
        held = pa.BufferOutputStream()
        pq.write_table(table, held, compression="zstd", row_group_size=ROWS_PER_GROUP)
        written = held.getvalue()
        path.write_bytes(memoryview(written).cast("B"))
        return int(written.size)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        pq.write_table(table, path, compression="zstd", row_group_size=ROWS_PER_GROUP)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path.stat().st_size


def _parts(
    table: pa.Table, partition_by: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    if not partition_by:
        yield (), table
        return
    # The sort is stable: within a partition rows stay in order.
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in partition_by])
    ordered = table.take(order)
    keys = list(zip(*(ordered[name].to_pylist() for name in partition_by), strict=True))
    start = 0
    for end in range(1, len(keys) + 1):
        if end == len(keys) or keys[end] != keys[start]:
            yield keys[start], ordered.slice(start, end - start)
            start = end
