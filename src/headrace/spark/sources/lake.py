"""The data source `headrace_lake`: rows into a Delta or an Iceberg table, once each.

Tasks write files that readers do not see; the driver's one commit shows them all or none.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.spark.batch_ids import current_batch
from headrace.spark.driver_notes import DriverNote, query_note
from headrace.spark.lake.parquet_files import (
    LakeError,
    LakeFile,
    no_place,
    remove_files,
    write_files,
)
from headrace.spark.lake.table_commits import DeltaLake, Iceberg, LakeTable
from headrace.spark.lake.table_history import TableMark
from headrace.spark.local_paths import local_path
from headrace.spark.object_store import S3Path
from headrace.spark.options import OptionError, Options
from headrace.spark.places import place_of

NAME = "headrace_lake"
OPTIONS = frozenset({"path", "tableFormat", "partitionBy", "catalog", "table", "committed"})
NOTE_FILE = "lake.json"
ICEBERG_ON_S3 = (
    "an Iceberg table on S3 is not supported, since its catalog is a file in its directory. Use "
    "the format delta there, or a directory."
)

Messages = list[WriterCommitMessage | None]


@dataclass
class Files(WriterCommitMessage):
    query: str
    files: list[LakeFile] = field(default_factory=list)


class LakeSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        note = query_note(Options(NAME, self.options, OPTIONS), NOTE_FILE)
        return LakeStreamWriter(self._checked_table(schema), schema, note)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise OptionError("headrace_lake only adds: write with mode append.")
        return LakeBatchWriter(self._checked_table(schema), schema)

    def _checked_table(self, schema: StructType) -> LakeTable:
        table = _table(Options(NAME, self.options, OPTIONS), schema)
        table.check(_arrow(schema))
        return table


def _table(options: Options, schema: StructType) -> LakeTable:
    path = place_of("path", options.required("path", "/data/lake/events")).absolute()
    partition_by = options.names("partitionBy")
    unknown = sorted(set(partition_by) - set(schema.fieldNames()))
    if unknown:
        raise OptionError(f"partitionBy names {unknown[0]}, which is not a column.")
    if options.choice("tableFormat", ("delta", "iceberg")) == "delta":
        return DeltaLake(path, partition_by)
    if isinstance(path, S3Path):
        raise OptionError(f"{path}: {ICEBERG_ON_S3}")
    usual = Iceberg.at(path, partition_by)
    catalog = local_path("catalog", options.text("catalog", str(usual.catalog_file))).absolute()
    name = options.text("table", usual.name)
    if not re.fullmatch(r"[^.]+\.[^.]+", name):
        raise OptionError(
            f"The option table is a namespace and a name, such as headrace.events: {name!r}."
        )
    return Iceberg(path, partition_by, catalog, name)


def _arrow(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


class _Writer:
    """What both writers do: a task's files, and the driver's commit."""

    def __init__(self, table: LakeTable, schema: StructType) -> None:
        self._table = table
        self._schema = schema

    def _write(self, query: str, prefix: str, batches: Iterator[pa.RecordBatch]) -> Files:
        held = [batch for batch in batches if batch.num_rows]
        files = write_files(
            self._table.data_dir,
            prefix,
            held,
            self._table.partition_by,
            keep_partition_columns=self._table.keeps_partition_columns,
        )
        return Files(query, files)

    def _commit(self, messages: Messages, batch: int) -> None:
        written = [message for message in messages if isinstance(message, Files)]
        files = [file for message in written for file in message.files]
        if not files:
            return
        try:
            is_new = self._table.commit(_arrow(self._schema), written[0].query, batch, files)
        except OSError as error:
            raise LakeError(no_place(self._table.data_dir, error)) from error
        if not is_new:
            remove_files(self._table.data_dir, files)

    def _abort(self, messages: Messages, batch: int) -> None:
        """Remove what was written for nothing.

        Spark also comes here when a commit raised, which it may do after it was made.
        """
        written = [message for message in messages if isinstance(message, Files)]
        if written and not self._table.has(written[0].query, batch):
            for message in written:
                remove_files(self._table.data_dir, message.files)


class LakeStreamWriter(_Writer, DataSourceStreamArrowWriter):
    def __init__(self, table: LakeTable, schema: StructType, note: DriverNote | None) -> None:
        super().__init__(table, schema)
        self._note = note

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        at = current_batch()
        return self._write(at.query, f"part-{at.batch:08d}-{at.partition:05d}", iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        written = [each for each in messages if isinstance(each, Files) and each.files]
        if written:
            self._miss_lost_commits(written[0].query)
        self._commit(messages, batchId)
        if written and self._note is not None:
            self._note.write(asdict(self._table.mark(batchId)))

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        self._abort(messages, batchId)

    def _miss_lost_commits(self, query: str) -> None:
        """Refuse to go on over a hole: the table may have been rolled back."""
        noted = self._note.read() if self._note is not None else None
        if self._note is None or noted is None:
            return
        mark = TableMark(**noted)
        lost = self._table.lost(query, mark)
        if lost is not None:
            raise LakeError(
                f"{self._table.data_dir}: this query has committed batch {mark.batch} to the table "
                f"(version or snapshot {mark.version}), and now the table {lost}. Nothing more is "
                "written. To write everything again: start with another checkpoint (in a pipeline, "
                "another --state) and another table. To go on without what is lost: delete "
                f"{self._note.path.absolute()}."
            )


class LakeBatchWriter(_Writer, DataSourceArrowWriter):
    def __init__(self, table: LakeTable, schema: StructType) -> None:
        super().__init__(table, schema)
        self._query = f"batch-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        assert task is not None, "not in a Spark task"
        return self._write(self._query, f"part-batch-{task.partitionId():05d}", iterator)

    def commit(self, messages: Messages) -> None:
        self._commit(messages, 0)

    def abort(self, messages: Messages) -> None:
        self._abort(messages, 0)
