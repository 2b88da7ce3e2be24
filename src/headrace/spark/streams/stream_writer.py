"""Writing: rows of a partition as appends that a repeat does not repeat.

A task of a streaming query knows its query and its batch. Its appends carry them as a producer:

    Producer-Id     <producerId option, or the query's id>-<partition>
    Producer-Epoch  the batch
    Producer-Seq    the number of the append within the batch, per stream

so a batch that runs again, whole or in part, is recognised append by append, and a task of an
older batch that was thought dead is refused. A batch write, as one inside foreachBatch, has no
query to name: `producerId` and `batch` say the same there. The epoch is the batch because a
partition may be empty in a batch, and sequence numbers must have no holes. What an append holds
depends on the rows alone: a fixed number of them, never on how Arrow cut them.

The driver notes where the streams ended (`target_note`), and no task extends one that has lost
messages since.

With the option `quarantineStream`, a row that the server refuses for good goes there with the
reason, once everything else is in and before the task ends.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from headrace.changes.rejected import Rejected
from headrace.postgres.ledger import Claim
from headrace.spark.batch_ids import current_batch
from headrace.spark.options import OptionError
from headrace.spark.quarantine import Quarantine
from headrace.spark.quarantine_count import QuarantineCount
from headrace.spark.runtime.workers import freeze_modules
from headrace.spark.streams.appender import Appender, TaskProducer
from headrace.spark.streams.chunking import by_stream
from headrace.spark.streams.columns import gathered
from headrace.spark.streams.offset_tracker import StreamProblem
from headrace.spark.streams.plan import StreamTail
from headrace.spark.streams.row_checks import RejectedRow
from headrace.spark.streams.stream_options import WriteOptions
from headrace.spark.streams.target_note import TargetNote

# Rows are sorted by stream so many at a time: with thousands of streams each has few of them.
_GATHERED_ROWS = 100_000
_GATHERED_BYTES = 32 * 1024 * 1024

# What the source gives. Offset and content type are of where a row comes from: rows may be copied.
_KNOWN = frozenset({"stream", "value", "offset", "content_type"})


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """What one task did; `repeated` of its appends were there already."""

    partition: int
    rows: int
    appends: int
    repeated: int
    quarantined: int = 0
    ends: dict[str, StreamTail] = field(default_factory=dict)


def check_columns(options: WriteOptions, schema: StructType) -> None:
    types = {field.name: field.dataType for field in schema.fields}
    unknown = [name for name in types if name not in _KNOWN]
    if unknown:
        raise OptionError(
            f"The column {unknown[0]} would be lost: a message is what the column value holds, and "
            "the column stream names its stream. Put what the others hold into value, or drop them."
        )
    if types.get("value") not in (StringType(), BinaryType()):
        raise OptionError("A column value of type string or binary holds what is written.")
    if options.stream is None and types.get("stream") != StringType():
        raise OptionError("Name the stream: by the option stream, or in a column stream (string).")


class _Writer:
    """What both writers share: the task's side."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(options, schema)
        self._options = options
        self._note = (
            TargetNote(options.note, options.fail_on_data_loss)
            if options.note is not None
            else None
        )
        self._targets = self._note.read() if self._note is not None else None

    def _note_ends(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when every task of a batch is done."""
        if self._note is not None:
            self._note.add(done.ends for done in messages if isinstance(done, TaskCommit))

    def _append_all(
        self, batches: Iterator[pa.RecordBatch], producer: TaskProducer | None, claim: Claim
    ) -> TaskCommit:
        freeze_modules()
        with Appender(self._options, producer, self._targets) as appender:
            for rows in gathered(batches, _GATHERED_ROWS, _GATHERED_BYTES):
                found = list(self._by_stream(rows))
                appender.expect(stream for stream, _ in found)
                for stream, values in found:
                    appender.write(stream, values)
            appender.flush()
        refused = appender.refused()
        if refused:
            options = self._options
            quarantined = Quarantine(options.quarantine_settings, options.quarantine_stream)
            quarantined.of(claim if producer else None).send(
                [_rejected(stream, row) for stream, row in refused]
            )
        return TaskCommit(
            claim.partition,
            appender.rows,
            appender.appends,
            appender.repeated,
            len(refused),
            appender.ends() if self._targets is not None else {},
        )

    def _by_stream(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
        values = rows.column("value").cast(pa.binary())
        if self._options.stream is not None:
            yield self._options.stream, values
            return
        for name, found in by_stream(rows.column("stream"), values):
            if not name and not self._options.quarantines_rows:
                raise StreamProblem("A row names no stream: the column stream is null or empty.")
            yield name or "", found


def _rejected(stream: str, row: RejectedRow) -> Rejected:
    """As it is set aside: text as text, other bytes as base64."""
    value, reason = row.value, row.reason
    text: str | bytes | None = value
    if value is not None:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            reason = f"{reason} It is not UTF-8: value is base64 of its bytes."
    return Rejected({"stream": stream, "value": text}, reason)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    def __init__(
        self, options: WriteOptions, schema: StructType, count: QuarantineCount | None = None
    ) -> None:
        super().__init__(options, schema)
        self._count = count

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        task = current_batch()
        producer = None
        if self._options.exactly_once:
            writer = self._options.producer_id or task.query
            producer = TaskProducer(f"{writer}-{task.partition}", task.batch)
        name = self._options.producer_id or "streams"
        return self._append_all(
            iterator, producer, Claim(name, task.query, task.partition, task.batch)
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Every append was complete when its task was; notes the ends, and what was quarantined."""
        self._note_ends(messages)
        if self._count is not None:
            done = (each for each in messages if isinstance(each, TaskCommit))
            self._count.add(batchId, sum(each.quarantined for each in done))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is taken back: the batch runs again, and repeats are recognised."""


class BatchWriter(_Writer, DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        # Chosen on the driver, so that a task that runs again is the same producer. A stream keeps
        # every producer it has seen: a write that is one of many names itself and its batch.
        self._id = options.producer_id or f"batch-{uuid.uuid4()}"
        self._epoch = options.batch or 0

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        producer = None
        if self._options.exactly_once:
            producer = TaskProducer(f"{self._id}-{partition}", self._epoch)
        claim = Claim(self._id, "batch", partition, self._epoch)
        return self._append_all(iterator, producer, claim)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._note_ends(messages)
