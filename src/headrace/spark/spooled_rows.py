"""The rows of a task, held until they are in: in memory while they are few, else in a file.

A Postgres that comes back wants the rows again, so they are read as often as that takes. What is
read at a time is bounded: the batches that Spark sends are cut into parts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import IO, Final, overload

import pyarrow as pa

MEMORY_BYTES: Final = 8 * 1024 * 1024  # of a task; a core runs one, next to its reads
PART_BYTES: Final = 4 * 1024 * 1024  # what one COPY holds several copies of


class HeldRows(Sequence[pa.RecordBatch], AbstractContextManager["HeldRows"]):
    """Add batches first, then read them as a sequence. Leaving it removes the file."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES, part_bytes: int = PART_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._part_bytes = part_bytes
        self._in_memory: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._reader: pa.ipc.RecordBatchFileReader | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        for part in parts(batch, self._part_bytes):
            self._add(part)

    def _add(self, part: pa.RecordBatch) -> None:
        assert self._reader is None, "rows are added before they are read"
        self._bytes += part.nbytes
        if self._writer is None and self._bytes > self._memory_bytes:
            self._spill(part.schema)
        if self._writer is None:
            self._in_memory.append(part)
        else:
            self._writer.write_batch(part)

    def _spill(self, schema: pa.Schema) -> None:
        self._file = tempfile.TemporaryFile(prefix="headrace-rows-")  # noqa: SIM115  closed on leaving
        self._writer = pa.ipc.new_file(pa.PythonFile(self._file, "w"), schema)
        for part in self._in_memory:
            self._writer.write_batch(part)
        self._in_memory = []

    def _written(self) -> pa.ipc.RecordBatchFileReader | None:
        if self._reader is None and self._writer is not None:
            self._writer.close()
            self._reader = pa.ipc.open_file(pa.PythonFile(self._file, "r"))
        return self._reader

    def __len__(self) -> int:
        written = self._written()
        return len(self._in_memory) if written is None else written.num_record_batches

    @overload
    def __getitem__(self, index: int) -> pa.RecordBatch: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[pa.RecordBatch]: ...

    def __getitem__(self, index: int | slice) -> pa.RecordBatch | Sequence[pa.RecordBatch]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        written = self._written()
        return self._in_memory[index] if written is None else written.get_batch(index)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._in_memory = []
        if self._file is not None:
            self._file.close()


def parts(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batch in slices of at most so many bytes each, as far as rows allow."""
    if batch.num_rows > 1 and batch.nbytes > bytes_max:
        half = batch.num_rows // 2
        yield from parts(batch.slice(0, half), bytes_max)
        yield from parts(batch.slice(half), bytes_max)
    elif batch.num_rows:
        yield batch
