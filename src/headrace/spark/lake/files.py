"""Parquet files of one task: one per combination of partition values, rows in the order they came.

Names carry no partition values: both table formats keep those in their metadata, and a directory
named after a session would have to survive slashes and percent signs.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


class LakeError(RuntimeError):
    """The table and what is to be written do not fit; the message says how."""


@dataclass(frozen=True)
class LakeFile:
    """A written file: its name below the table's data directory, its size, what is in it."""

    name: str
    size_bytes: int
    rows: int
    partition: tuple[Any, ...]


def write_files(
    directory: Path,
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
        directory.mkdir(parents=True, exist_ok=True)
        for number, (values, part) in enumerate(_parts(table, partition_by)):
            kept = part if keep_partition_columns else part.drop_columns(list(partition_by))
            name = f"{prefix}-{number:05d}-{uuid.uuid4().hex}.parquet"
            written.append(_write(directory, name, kept, values))
    except OSError as error:
        remove_files(directory, written)
        raise LakeError(no_place(directory, error)) from error
    return written


def no_place(directory: Path, error: OSError) -> str:
    # The table library gives no number, only what the system says.
    is_full = error.errno == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(error)
    problem = "has no room" if is_full else f"cannot be written ({' '.join(str(error).split())})"
    return f"{directory} {problem}. Nothing of this batch is in; it comes again at the next start."


def remove_files(directory: Path, files: Sequence[LakeFile]) -> None:
    """Files of an attempt that did not count."""
    for file in files:
        (directory / file.name).unlink(missing_ok=True)


def _write(directory: Path, name: str, table: pa.Table, values: tuple[Any, ...]) -> LakeFile:
    path = directory / name
    try:
        pq.write_table(table, path, compression="zstd")
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return LakeFile(name, path.stat().st_size, table.num_rows, values)


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
