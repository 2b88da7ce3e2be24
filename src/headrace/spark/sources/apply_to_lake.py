"""The writer of `headrace_apply_changes` for lake tables: tasks commit tables, the driver keeps
what follows from the streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from headrace.changes.rejected import Rejected
from headrace.changes.rules import Rules
from headrace.postgres.ledger import Claim
from headrace.spark.applied_lake.batch_notes import BatchNotes
from headrace.spark.applied_lake.keyed_tables import BatchId, Lake
from headrace.spark.applied_lake.stream_memory import pending_dir, remove_unused
from headrace.spark.applied_lake.table_batch import Batch
from headrace.spark.applied_lake.writer import Applied, apply
from headrace.spark.local_paths import local_path
from headrace.spark.options import Options
from headrace.spark.quarantine_count import QuarantineCount
from headrace.spark.runtime.workers import freeze_modules
from headrace.spark.sources.postgres_sink import quarantine_of
from headrace.spark.spooled_rows import HeldRows


@dataclass
class TablesDone(WriterCommitMessage):
    applied: Applied
    quarantined: int


class LakeChangesWriter(DataSourceArrowWriter):
    def __init__(
        self, options: Options, rules: Rules, refuse: Callable[[list[Rejected]], None]
    ) -> None:
        root = local_path("path", options.required("path", "/data/lake/tables")).absolute()
        self._lake = Lake(root, options.choice("tableFormat", ("delta", "iceberg")))
        checkpoint = options.required("checkpointLocation", "/data/state/checkpoint")
        query = options.required("query", "the query's id")
        number = int(options.required("batch", "the batch number of foreachBatch"))
        self._batch = Batch(
            BatchId(options.required("writer", "apply-changes"), query, number),
            rules,
            time.time_ns() // 1000,
            checkpoint,
            options.flag("exactlyOnce", True),
        )
        self._refuse = refuse
        self._quarantine = quarantine_of(options)
        self._count = QuarantineCount.of(checkpoint)
        self._notes = BatchNotes(local_path("checkpointLocation", checkpoint))
        self._known = self._notes.before(number)
        self._lake.make_ready()
        remove_unused(pending_dir(root, query), self._known.streams)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        freeze_modules()
        with HeldRows() as held:
            for batch in iterator:
                held.add(batch)
            quarantined = self._quarantine.of(self._claim()) if self._quarantine else None
            reject = quarantined.send if quarantined is not None else self._refuse
            applied = apply(self._lake, self._batch, self._known, held, reject)
        return TablesDone(applied, quarantined.sent if quarantined is not None else 0)

    def _claim(self) -> Claim | None:
        """The name that the quarantine knows this partition of the batch by."""
        if not self._batch.exactly_once:
            return None
        task = TaskContext.get()
        assert task is not None, "not in a Spark task"
        id = self._batch.id
        return Claim(id.writer, id.query, task.partitionId(), id.number, "", "")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        done = [each for each in messages if isinstance(each, TablesDone)]
        number = self._batch.id.number
        self._notes.add(number, self._known, [each.applied for each in done])
        if self._count is not None:
            self._count.add(number, sum(each.quarantined for each in done))
