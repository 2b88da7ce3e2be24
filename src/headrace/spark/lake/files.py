"""Parquet files of one task: one per combination of partition values, rows in the order they came.

Names carry no partition values: both table formats keep those in their metadata, and a directory
named after a session would have to survive slashes and percent signs.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


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
    """Write what a task holds."""
    if not batches:
        return []
    directory.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_batches(batches)
    return [
        _write(
            directory,
            f"{prefix}-{number:05d}-{uuid.uuid4().hex}.parquet",
            part if keep_partition_columns else part.drop_columns(list(partition_by)),
            values,
        )
        for number, (values, part) in enumerate(_parts(table, partition_by))
    ]


def remove_files(directory: Path, files: Sequence[LakeFile]) -> None:
    """Files of an attempt that did not count."""
    for file in files:
        (directory / file.name).unlink(missing_ok=True)


def _write(directory: Path, name: str, table: pa.Table, values: tuple[Any, ...]) -> LakeFile:
    path = directory / name
    pq.write_table(table, path, compression="zstd")
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
