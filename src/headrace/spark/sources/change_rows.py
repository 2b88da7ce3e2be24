"""The rows both change sources give, and how they travel in a partition.

A batch is read once, where it is planned, and goes to the task inside its partition: a slot has
one reader at a time, so a task cannot read it while the planner holds it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.postgres.change_table import ChangeTable
from headrace.spark.runtime.workers import freeze_modules

_PIECE_BYTES_MAX = 8 * 1024 * 1024

# As types, not as text: parsing text needs a session, which planners and tasks do not have.
SCHEMA = StructType(
    [
        StructField("table", StringType()),
        StructField("op", StringType()),
        StructField("key", StringType()),
        StructField("value", StringType()),
        StructField("old", StringType()),
        StructField("unchanged", ArrayType(StringType())),
        StructField("lsn", StringType()),
        StructField("seq", IntegerType()),
        StructField("xid", LongType()),
        StructField("committed_at", TimestampType()),
    ]
)


class ChangePartition(InputPartition):
    """Changes as Arrow, in the bytes of one partition."""

    def __init__(self, columns: pa.Table) -> None:
        super().__init__(None)
        self._data = _packed(columns)

    def batches(self) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        with pa.ipc.open_stream(self._data) as reader:
            yield from reader


def partitions(changes: ChangeTable) -> list[InputPartition]:
    """One partition: a log has one order, and it is kept."""
    return [ChangePartition(changes.columns)] if changes else []


def _packed(columns: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns.schema) as writer:
        for batch in columns.to_batches():
            for part in pieces(batch):
                writer.write_batch(part)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in halves of halves: Spark holds each whole, twice over, while it makes rows."""
    if batch.num_rows <= 1 or batch.nbytes <= _PIECE_BYTES_MAX:
        yield batch
        return
    half = batch.num_rows // 2
    yield from pieces(batch.slice(0, half))
    yield from pieces(batch.slice(half))
