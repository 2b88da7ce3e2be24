"""The data source `headrace_apply_changes`: messages that say changes, applied to tables.

For a batch inside foreachBatch, whose rows are `stream, offset, value, is_snapshot`. A stream is in
one partition, in the order of its offsets; `headrace.postgres.apply` does the rest. With `path` the
tables are in a lake there, and all streams of a table are in one partition.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.changes.applying import Message
from headrace.changes.rejected import Rejected
from headrace.changes.rules import Rules
from headrace.postgres.apply.registry import prepare as prepare_registry
from headrace.postgres.apply.writer import apply
from headrace.postgres.ledger import Claim, SinkError, digest_of_plan, prepare
from headrace.postgres.sink import SinkTarget
from headrace.spark.connection_cache import postgres_connection
from headrace.spark.options import OptionError, Options
from headrace.spark.quarantine_count import QuarantineCount
from headrace.spark.runtime.workers import freeze_modules
from headrace.spark.sources.postgres_sink import Done, commit_note_of, quarantine_of
from headrace.spark.spooled_rows import HeldRows

NAME = "headrace_apply_changes"
OPTIONS = frozenset(
    {
        "url", "table", "keys", "scdType", "createTable", "newColumns", "fireTriggers", "writer",
        "query", "batch", "partitions", "committed", "origin", "retrySecs", "exactlyOnce",
        "quarantineUrl", "quarantineStream", "quarantineToken", "path", "tableFormat",
    }
)  # fmt: skip
_COLUMNS = list(Message._fields)


class ApplyChanges(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise OptionError(f"{NAME} replaces no table: write with mode append.")
        if sorted(schema.fieldNames()) != sorted(_COLUMNS):
            raise OptionError(f"{NAME} takes the columns {', '.join(_COLUMNS)}.")
        options = Options(NAME, self.options, OPTIONS)
        if not options.text("path"):
            return ChangesWriter(options)
        from headrace.spark.sources.apply_to_lake import LakeChangesWriter

        return LakeChangesWriter(options, rules_of(options), _refuse)


def rules_of(options: Options) -> Rules:
    return Rules(
        table=options.text("table", "{stream}"),
        keys=options.names("keys"),
        history=options.choice("scdType", ("1", "2")) == "2",
        create_table=options.flag("createTable", True),
        new_columns=options.choice("newColumns", ("add", "refuse", "ignore")),
        fire_triggers=options.flag("fireTriggers", True),
    )


class ChangesWriter(DataSourceArrowWriter):
    def __init__(self, options: Options) -> None:
        self._rules = rules_of(options)
        self._target = SinkTarget(
            options.required("url", "postgresql://user:password@localhost/database"),
            "the tables",
            (),
            origin=options.text("origin"),
            retry_secs=options.number("retrySecs", 60, least=0),
        )
        self._writer = options.required("writer", "apply-changes")
        self._query = options.text("query", self._writer)
        self._partitions = options.number("partitions", 0, least=1)
        self._batch = int(options.required("batch", "the batch number of foreachBatch"))
        # Chosen on the driver: one for all tasks, another after a restart.
        self._run = str(uuid.uuid4())
        self._exactly_once = options.flag("exactlyOnce", True)
        self._quarantine = quarantine_of(options)
        self._note = commit_note_of(options, is_query=False) if self._exactly_once else None
        self._committed = self._note.read() if self._note else None
        self._count = QuarantineCount.of(options.text("checkpointLocation"))
        prepare(self._target.url)
        prepare_registry(self._target.url)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        freeze_modules()
        task = TaskContext.get()
        assert task is not None, "not in a Spark task"
        partition = task.partitionId()
        with HeldRows() as held:
            for batch in iterator:
                held.add(batch)
            claim = self._claim(partition) if self._exactly_once else None
            quarantined = self._quarantine.of(claim) if self._quarantine is not None else None
            reject = quarantined.send if quarantined is not None else _refuse
            written = apply(
                self._target, self._rules, self._writer, claim, held, reject, postgres_connection
            )
        return Done(written.rows, quarantined.sent if quarantined is not None else 0, partition)

    def _claim(self, partition: int) -> Claim:
        # The number of partitions says which streams this one has, and the plan which messages.
        # Not the messages themselves: repeated, some may be in a newer snapshot of their stream,
        # which the next batch starts with.
        digest = digest_of_plan(f"{self._partitions} partitions by stream")
        return Claim(
            self._writer, self._query, partition, self._batch, self._run, digest, self._committed
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        done = [each for each in messages if isinstance(each, Done)]
        if self._note is not None:
            self._note.add(self._batch, (each.partition for each in done))
        if self._count is not None:
            self._count.add(self._batch, sum(each.quarantined for each in done))


def _refuse(rejected: list[Rejected]) -> None:
    """Without a quarantine, what cannot be applied ends the batch."""
    if rejected:
        first = rejected[0]
        raise SinkError(
            f"The message of {first.row['stream']} that ends at {first.row['offset']} cannot be "
            f"applied: {first.reason}. Nothing of the batch is written. Set quarantine to keep "
            "such messages in a stream."
        )
