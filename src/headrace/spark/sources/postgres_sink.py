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
from headrace.postgres.ledger import Claim, RowsDigest, prepare
from headrace.postgres.sink import SinkTarget, write
from headrace.spark.batch_ids import BatchOfTask, current_batch
from headrace.spark.commit_note import FILE, CommitNote
from headrace.spark.connection_cache import postgres_connection
from headrace.spark.driver_notes import given_note, query_note
from headrace.spark.offset_log import planned
from headrace.spark.options import OptionError, Options
from headrace.spark.quarantine import Quarantine
from headrace.spark.quarantine_count import QuarantineCount
from headrace.spark.runtime.workers import freeze_modules
from headrace.spark.spooled_rows import HeldRows

NAME = "headrace_postgres"
OPTIONS = frozenset(
    {
        "url", "table", "mode", "keys", "writer", "batch", "committed", "origin", "retrySecs",
        "exactlyOnce",
        "quarantineUrl", "quarantineStream", "quarantineToken", "reasonColumn",
    }
)  # fmt: skip


@dataclass
class Done(WriterCommitMessage):
    rows: int
    quarantined: int
    partition: int


class PostgresSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        freeze_modules()
        sink = _Sink(Options(NAME, self.options, OPTIONS), schema, is_query=True)
        if overwrite and not sink.target.keys:
            raise OptionError(f"{NAME} only adds: write with output mode append, or give keys.")
        sink.make_ready()
        return PostgresStreamWriter(sink)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise OptionError(f"{NAME} replaces no table: write with mode append.")
        options = Options(NAME, self.options, OPTIONS)
        sink = _Sink(options, schema, is_query=False)
        sink.make_ready()
        batch = options.text("batch")
        if batch and not options.text("writer"):
            raise OptionError("The option batch needs the option writer, the name it counts for.")
        return PostgresBatchWriter(sink, int(batch) if batch else None)


class _Sink:
    """What both writers do with a partition."""

    def __init__(self, options: Options, schema: StructType, *, is_query: bool) -> None:
        self._reason = options.text("reasonColumn")
        columns = tuple(name for name in schema.fieldNames() if name != self._reason)
        keys = options.names("keys")
        mode = options.choice("mode", ("append", "upsert"))
        if (mode == "upsert") != bool(keys):
            raise OptionError("mode upsert needs the option keys, and only it takes them.")
        if not set(keys) <= set(columns):
            raise OptionError(f"keys {', '.join(keys)} are not all columns: {', '.join(columns)}.")
        self.target = SinkTarget(
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
        self._quarantine = quarantine_of(options)
        self._note = commit_note_of(options, is_query=is_query) if self.exactly_once else None
        self._committed = self._note.read() if self._note else None
        checkpoint = self._note.note.checkpoint if self._note and is_query else None
        self._planned = planned(checkpoint) if checkpoint is not None else None
        self._count = QuarantineCount.of(options.text("checkpointLocation"))

    def make_ready(self) -> None:
        if self.exactly_once:
            prepare(self.target.url)

    def write(self, at: BatchOfTask | None, batches: Iterator[pa.RecordBatch]) -> Done:
        freeze_modules()
        partition = at.partition if at is not None else 0
        quarantined = self._quarantine.of(None) if self._quarantine is not None else None
        with HeldRows() as held:
            rows = RowsDigest()
            for batch in batches:
                rows.add(batch)
                held.add(
                    quarantined.split(batch, self._reason) if quarantined is not None else batch
                )
            claim = self._claim(at, rows.value()) if at is not None else None
            if quarantined is None:
                written = write(self.target, claim, held, connect=postgres_connection)
                return Done(written.rows, 0, partition)
            quarantined.claim = claim
            written = write(self.target, claim, held, quarantined.send, postgres_connection)
            return Done(written.rows, quarantined.sent, partition)

    def committed(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        """On the driver, when every task of a batch has committed."""
        done = [each for each in messages if isinstance(each, Done)]
        if self._note is not None:
            self._note.add(batch, (each.partition for each in done))
        if self._count is not None:
            self._count.add(batch, sum(each.quarantined for each in done))

    def _claim(self, at: BatchOfTask, rows: str) -> Claim:
        name = self.writer_name or at.query
        is_planned = self._planned is not None and self._planned.batch == at.batch
        files = self._planned.files if self._planned is not None and is_planned else ()
        return Claim(
            name, at.query, at.partition, at.batch, self._run, rows, self._committed, files
        )


def commit_note_of(options: Options, *, is_query: bool) -> CommitNote | None:
    note = query_note(options, FILE) if is_query else given_note(options)
    return CommitNote(note, options.text("writer")) if note is not None else None


def quarantine_of(options: Options) -> Quarantine | None:
    stream = options.text("quarantineStream")
    if not stream:
        return None
    url = options.required("quarantineUrl", "http://localhost:4437")
    token = options.text("quarantineToken") or None
    return Quarantine(Settings(url=url, token=token), stream)


class PostgresStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, sink: _Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        at = current_batch()
        return self._sink.write(at if self._sink.exactly_once else None, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._sink.committed(messages, batchId)


class PostgresBatchWriter(DataSourceArrowWriter):
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

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._batch is not None:
            self._sink.committed(messages, self._batch)
