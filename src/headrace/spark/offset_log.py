"""Spark's log of planned batches in a checkpoint, and how to put a checkpoint back to a batch.

A checkpoint has a file per batch in `offsets`, written before the batch runs, and in `commits`,
written after it. Spark keeps the last 100 of each, unless minBatchesToRetain says otherwise. To
plan a batch as it was, it needs the file of that batch and of the one before. A sink that keeps
these two with what it has committed can be restored to any moment, and the query continues there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.spark.places import Place, names_in, write_whole

_BYTES_MAX: Final = 256 * 1024  # of both files; thousands of streams have more


@dataclass(frozen=True)
class Planned:
    """A batch as it was planned: its file, and that of the one before (none before batch 0)."""

    batch: int
    files: tuple[str, ...]


def query_id(checkpoint: Place) -> str | None:
    """The id of the query, which Spark chose with the checkpoint; None before that."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text("utf-8"))["id"])
    except FileNotFoundError:
        return None


def planned(checkpoint: Place) -> Planned | None:
    """The batch that was planned last, if it is small enough to be kept elsewhere."""
    batch = max(_numbers(checkpoint / "offsets"), default=None)
    if batch is None:
        return None
    names = [str(number) for number in (batch - 1, batch) if number >= 0]
    try:
        files = tuple((checkpoint / "offsets" / name).read_text("utf-8") for name in names)
    except FileNotFoundError:
        return None
    return Planned(batch, files) if sum(map(len, files)) <= _BYTES_MAX else None


def put_back(checkpoint: Place, to: Planned) -> None:
    """Let the query go on with this batch, which it runs again as it was planned."""
    later = [*_files(checkpoint / "commits", to.batch), *_files(checkpoint / "offsets", to.batch)]
    # The newest first: a crash leaves no hole.
    for _, path in sorted(later, key=lambda each: each[0], reverse=True):
        path.unlink()
        _drop_checksum(path)
    first = to.batch - len(to.files) + 1
    for number, text in enumerate(to.files, first):
        path = checkpoint / "offsets" / str(number)
        _drop_checksum(path)
        write_whole(path, text, durable=True)


def _drop_checksum(path: Place) -> None:
    """Of the file's earlier text; on S3 Hadoop keeps none."""
    if isinstance(path, Path):
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _files(directory: Place, first: int) -> Iterator[tuple[int, Place]]:
    for number in _numbers(directory):
        if number >= first:
            yield number, directory / str(number)


def _numbers(directory: Place) -> list[int]:
    return [int(name) for name in names_in(directory) if name.isdigit()]
