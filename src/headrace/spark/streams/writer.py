"""Writing: rows of a partition as appends that a repeat does not repeat.

A task of a streaming query knows its query and its batch. Its appends carry them as a producer:

    Producer-Id     <producerId option, or the query's id>-<partition>
    Producer-Epoch  the batch
    Producer-Seq    the number of the append within the batch, per stream

so a batch that runs again, whole or in part, is recognised append by append, and a task of an
older batch that was thought dead is refused. The epoch is the batch because a partition may be
empty in a batch, and sequence numbers must have no holes. What an append holds depends on the
rows alone: a fixed number of them, never on how Arrow cut them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from headrace.client.calls import ProducerStamp
from headrace.errors import HeadraceError
from headrace.spark.batches import current_batch
from headrace.spark.options import OptionError
from headrace.spark.streams.bodies import Chunker, bodies_of
from headrace.spark.streams.options import WriteOptions
from headrace.spark.streams.server import Server
from headrace.spark.streams.tracking import StreamProblem


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task did; `repeated` of its appends were there already."""

    partition: int
    rows: int
    appends: int
    repeated: int


@dataclass(frozen=True, slots=True)
class Producer:
    """Who writes in one task; None where repeats are not to be recognised."""

    id: str
    epoch: int

    def stamp(self, seq: int) -> ProducerStamp:
        return ProducerStamp(self.id, self.epoch, seq)


def check_columns(options: WriteOptions, schema: StructType) -> None:
    types = {field.name: field.dataType for field in schema.fields}
    if types.get("value") not in (StringType(), BinaryType()):
        raise OptionError("A column value of type string or binary holds what is written.")
    if options.stream is None and types.get("stream") != StringType():
        raise OptionError("Name the stream: by the option stream, or in a column stream (string).")


class _Writer:
    """What both writers share: the task's side."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(options, schema)
        self._options = options

    def _append_all(
        self, batches: Iterator[pa.RecordBatch], producer: Producer | None, partition: int
    ) -> Written:
        server = Server(self._options.settings)
        task = Appender(self._options, server, producer)
        try:
            chunker = Chunker(self._options.chunk_rows, self._options.chunk_bytes)
            for batch in batches:
                for stream, values in self._by_stream(batch):
                    for chunk in chunker.add(stream, values):
                        task.append(stream, chunk)
            for stream, chunk in chunker.rest():
                task.append(stream, chunk)
        finally:
            server.close()
        return Written(partition, task.rows, task.appends, task.repeated)

    def _by_stream(self, batch: pa.RecordBatch) -> Iterator[tuple[str, list[bytes | None]]]:
        values = batch.column("value").cast(pa.binary()).to_pylist()
        if self._options.stream is not None:
            yield self._options.stream, values
            return
        streams = batch.column("stream").to_pylist()
        groups: dict[str | None, list[bytes | None]] = {}
        for stream, value in zip(streams, values, strict=True):
            groups.setdefault(stream, []).append(value)
        for name, group in groups.items():
            if not name:
                raise StreamProblem("A row names no stream: the column stream is null or empty.")
            yield name, group


class Appender:
    """The appends of one task, numbered per stream."""

    def __init__(self, options: WriteOptions, server: Server, producer: Producer | None) -> None:
        self._options = options
        self._server = server
        self._producer = producer
        self._content_types: dict[str, str] = {}
        self._next_seq: dict[str, int] = {}
        self.rows = self.appends = self.repeated = 0

    def write(self, stream: str, values: Sequence[bytes | None]) -> None:
        """Append all of one stream's values, in chunks."""
        chunker = Chunker(self._options.chunk_rows, self._options.chunk_bytes)
        for chunk in chunker.add(stream, values):
            self.append(stream, chunk)
        for _, chunk in chunker.rest():
            self.append(stream, chunk)

    def append(self, stream: str, values: Sequence[bytes | None]) -> None:
        try:
            self._append(stream, values)
        except HeadraceError as error:
            raise StreamProblem(f"{stream}: {error}") from error

    def _append(self, stream: str, values: Sequence[bytes | None]) -> None:
        content_type = self._content_types.get(stream)
        if content_type is None:
            content_type = self._content_types[stream] = self._content_type(stream)
        for body in bodies_of(stream, content_type, values):
            seq = self._next_seq.get(stream, 0)
            stamp = self._producer.stamp(seq) if self._producer else None
            appended = self._server.append(stream, body, content_type, stamp)
            self._next_seq[stream] = seq + 1
            self.appends += 1
            self.repeated += appended.duplicate
        self.rows += len(values)

    def _content_type(self, stream: str) -> str:
        if self._options.create:
            return self._server.create(stream, self._options.content_type)
        return self._server.content_type(stream)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = current_batch()
        producer = None
        if self._options.exactly_once:
            writer = self._options.producer_id or task.query
            producer = Producer(f"{writer}-{task.partition}", task.batch)
        return self._append_all(iterator, producer, task.partition)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Every append was complete when its task was."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is taken back: the batch runs again, and repeats are recognised."""


class BatchWriter(_Writer, DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        # Chosen on the driver, so that a task that runs again is the same producer.
        self._id = options.producer_id or f"batch-{uuid.uuid4()}"

    def write(self, iterator: Iterator[Any]) -> Written:
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        producer = Producer(f"{self._id}-{partition}", 0) if self._options.exactly_once else None
        return self._append_all(iterator, producer, partition)
