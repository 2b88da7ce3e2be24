"""What a pipeline remembers of its streams from one batch to the next, for lake tables.

It follows from the messages alone, so it need not change in one step with the tables: the driver
keeps it per batch, and a batch that comes again starts from what was known before it. Only the
messages of a snapshot that has not ended are in files of their own, in the lake, where tasks find
them.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.changes.applying import Pending
from headrace.spark.applied_lake.keyed_tables import OURS
from headrace.spark.lake.parquet_files import LakeError

_SCHEMA: Final = pa.schema([("offset", pa.string()), ("message", pa.binary())])
_SUFFIX: Final = ".pending"


class StreamState(msgspec.Struct, frozen=True):
    """Of one stream: its tables, with the columns that it has named in each, and the files of a
    snapshot that has begun and not ended."""

    tables: dict[str, list[str]] = {}
    pending: list[str] = []


Streams = dict[str, StreamState]


def pending_dir(root: Path, query: str) -> Path:
    return root / OURS / query


def remove_unused(directory: Path, streams: Streams) -> None:
    """Remove the files of snapshots that have ended, and of attempts that did not count."""
    used = {name for state in streams.values() for name in state.pending}
    for path in directory.glob(f"*{_SUFFIX}"):
        if path.name not in used:
            path.unlink(missing_ok=True)


def forget(root: Path, query: str) -> None:
    shutil.rmtree(pending_dir(root, query), ignore_errors=True)


@dataclass
class LakeMemory:
    """Of one stream in one batch. `streams` is of all; this stream's part changes."""

    streams: Streams
    stream: str
    directory: Path
    _added: list[Pending] = field(default_factory=list)

    @property
    def _state(self) -> StreamState:
        return self.streams.get(self.stream, StreamState())

    def _set(self, **changes: Any) -> None:
        self.streams[self.stream] = msgspec.structs.replace(self._state, **changes)

    def targets(self) -> dict[str, list[str]]:
        return dict(self._state.tables)

    def save(self, target: str, columns: Sequence[str]) -> None:
        self._set(tables={**self._state.tables, target: list(columns)})

    def other_stream(self, target: str) -> str | None:
        others = (
            name
            for name, state in self.streams.items()
            if name != self.stream and target in state.tables
        )
        return next(others, None)

    def has_pending(self) -> bool:
        return bool(self._state.pending)

    def add_pending(self, messages: Sequence[Pending]) -> None:
        if not messages:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        name = f"{uuid.uuid4().hex}{_SUFFIX}"
        columns = [
            pa.array(column, kind)
            for column, kind in zip(zip(*messages, strict=True), _SCHEMA.types, strict=True)
        ]
        batch = pa.record_batch(columns, schema=_SCHEMA)
        path = str(self.directory / name)
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, _SCHEMA) as writer:
            writer.write_batch(batch)
        self._set(pending=[*self._state.pending, name])

    def pending(self) -> Iterator[Pending]:
        for name in self._state.pending:
            path = self.directory / name
            if not path.is_file():
                raise LakeError(
                    f"{path} is missing, which has messages of a snapshot of {self.stream}. Have "
                    "the source send the snapshot again, or reset the pipeline: headrace pipeline "
                    "reset apply-changes."
                )
            with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
                for number in range(reader.num_record_batches):
                    rows = reader.get_batch(number)
                    columns = (column.to_pylist() for column in rows.columns)
                    yield from map(Pending._make, zip(*columns, strict=True))

    def drop_pending(self) -> None:
        self._set(pending=[])
