"""The data source `headrace_postgres`: rows into a table, by COPY, exactly once.

Streaming writes are recognised by query, batch and partition. A batch write is, too, if it says
which batch it is (`writer` and `batch`), as one inside foreachBatch should; else it simply adds.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headrace.client import Settings
from headrace.postgres.ledger import Claim, digest, prepare
from headrace.postgres.sink import Target, write
from headrace.spark.batches import BatchOfTask, current_batch
from headrace.spark.options import OptionError, Options
from headrace.spark.postgres_sessions import postgres_connection
from headrace.spark.quarantine import Quarantine
from headrace.spark.workers import settle

NAME = "headrace_postgres"
OPTIONS = frozenset(
    {
        "url", "table", "mode", "keys", "writer", "batch", "origin", "retrySecs", "exactlyOnce",
        "quarantineUrl", "quarantineStream", "quarantineToken", "reasonColumn",
    }
)  # fmt: skip


@dataclass
class Done(WriterCommitMessage):
    rows: int
    quarantined: int


class PostgresSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        settle()
        sink = _Sink(Options(NAME, self.options, OPTIONS), schema)
        if overwrite and not sink.target.keys:
            raise OptionError(f"{NAME} only adds: write with output mode append, or give keys.")
        sink.make_ready()
        return StreamWriter(sink)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise OptionError(f"{NAME} replaces no table: write with mode append.")
        options = Options(NAME, self.options, OPTIONS)
        sink = _Sink(options, schema)
        sink.make_ready()
        batch = options.text("batch")
        if batch and not options.text("writer"):
            raise OptionError("The option batch needs the option writer, the name it counts for.")
        return BatchWriter(sink, int(batch) if batch else None)


class _Sink:
    """What both writers do with a partition."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._reason = options.text("reasonColumn")
        columns = tuple(name for name in schema.fieldNames() if name != self._reason)
        keys = options.names("keys")
        mode = options.choice("mode", ("append", "upsert"))
        if (mode == "upsert") != bool(keys):
            raise OptionError("mode upsert needs the option keys, and only it takes them.")
        if not set(keys) <= set(columns):
            raise OptionError(f"keys {', '.join(keys)} are not all columns: {', '.join(columns)}.")
        self.target = Target(
            options.required("url", "postgresql://user:password@localhost/database"),
            options.required("table", "public.session_events"),
            columns,
            keys,
            options.text("origin"),
            options.number("retrySecs", 60, least=0),
        )
        self.writer_name = options.text("writer")
        # Chosen on the driver: one for all tasks, another after a restart.
        self._run = str(uuid.uuid4())
        self.exactly_once = options.flag("exactlyOnce", True)
        self._quarantine = _quarantine(options)

    def make_ready(self) -> None:
        if self.exactly_once:
            prepare(self.target.url)

    def write(self, at: BatchOfTask | None, batches: Iterator[pa.RecordBatch]) -> Done:
        settle()
        # Held until it is in: a Postgres that comes back wants the rows again.
        held = [batch for batch in batches if batch.num_rows]
        claim = self._claim(at, held) if at is not None else None
        if self._quarantine is None:
            return Done(write(self.target, claim, held, connect=postgres_connection).rows, 0)
        aside = self._quarantine.of(claim)
        good = [aside.sift(batch, self._reason) for batch in held]
        written = write(self.target, claim, good, aside.send, postgres_connection)
        return Done(written.rows, aside.sent)

    def _claim(self, at: BatchOfTask, held: list[pa.RecordBatch]) -> Claim:
        name = self.writer_name or at.query
        return Claim(name, at.query, at.partition, at.batch, self._run, digest(held))


def _quarantine(options: Options) -> Quarantine | None:
    stream = options.text("quarantineStream")
    if not stream:
        return None
    url = options.required("quarantineUrl", "http://localhost:4437")
    token = options.text("quarantineToken") or None
    return Quarantine(Settings(url=url, token=token), stream)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, sink: _Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        at = current_batch()
        return self._sink.write(at if self._sink.exactly_once else None, iterator)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, sink: _Sink, batch: int | None) -> None:
        self._sink = sink
        self._batch = batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._batch is None:
            return self._sink.write(None, iterator)
        task = TaskContext.get()
        assert task is not None, "not in a Spark task"
        name = self._sink.writer_name
        return self._sink.write(BatchOfTask(name, self._batch, task.partitionId()), iterator)
