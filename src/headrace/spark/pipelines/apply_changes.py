"""`apply-changes`: streams of changes applied to tables, so that those hold the rows.

The changes are State Protocol messages, those that `postgres-to-stream` writes, session events, or
Debezium's envelope. A table has the rows as they are now (SCD type 1), or every version of each
with the time it was valid (SCD type 2). It is in Postgres, or in a lake as Delta or Iceberg.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from headrace.changes.rules import NewColumns
from headrace.client.state import STATE_MEDIA_TYPE
from headrace.spark.applied_lake.batch_notes import DIRECTORY as LAKE_NOTES
from headrace.spark.applied_lake.keyed_tables import Lake
from headrace.spark.applied_lake.maintenance import MergingOfFiles
from headrace.spark.batch_ids import current_query
from headrace.spark.commit_note import FILE as COMMITTED_FILE
from headrace.spark.local_paths import local_path
from headrace.spark.pipelines.base import (
    BYTES_PER_BATCH,
    ConfigError,
    Pipeline,
    Run,
    local_postgres,
)
from headrace.spark.pipelines.stream_source import StreamsConfig, messages
from headrace.spark.places import names_in

_BUCKET = "postgres"  # where postgres-to-stream writes changes
_PARTITIONS = 4
_MARKS = ("{stream}", "{table}", "{schema}")


class Config(StreamsConfig, frozen=True, kw_only=True):
    streams: tuple[str, ...] = ()  # without streams, pattern and bucket: the bucket postgres
    target: Literal["postgres", "delta", "iceberg"] = "postgres"
    postgres: str = msgspec.field(default_factory=local_postgres)
    lake: str = "data/lake/tables"  # the directory of the tables of delta and iceberg
    table: str = "{stream}"  # and {table}, {schema} as the messages say
    keys: tuple[str, ...] = ()  # else the table's primary key
    scd_type: Literal[1, 2] = 1
    create_table: bool = True
    new_columns: NewColumns = "add"
    fire_triggers: bool = True  # false: neither triggers nor foreign keys of the tables
    quarantine: str = "quarantine"  # empty: what cannot be applied ends the pipeline
    writer: str = "apply-changes"  # the ledger's name for this pipeline
    origin: str = "headrace"  # marks the rows, so that postgres-to-stream leaves them out
    partitions: int = _PARTITIONS  # tasks per batch; a stream is in one, of a lake a table
    every_secs: int = 60  # of a lake: a continuous run commits no more often
    merge_files_secs: int = 300  # of a lake; 0 never merges
    messages_per_batch: int = 50_000
    bytes_per_batch: int = BYTES_PER_BATCH // 2  # parsed, a message takes several times its size

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.partitions < 1:
            raise ValueError("partitions must be 1 or more.")
        if "," in self.quarantine:
            raise ValueError(f"quarantine: {self.quarantine!r} has a comma.")
        if self.quarantine and self.quarantine in self.streams:
            raise ValueError(f"{self.quarantine} is both read and the quarantine stream.")
        if any("," in key for key in self.keys):
            raise ValueError("keys: a column with a comma cannot be one.")
        rest = self.table
        for mark in _MARKS:
            rest = rest.replace(mark, "")
        if "{" in rest or "}" in rest:
            raise ValueError(f"table: {self.table!r} may contain {', '.join(_MARKS)}.")
        local_path("lake", self.lake)
        if self.is_lake and not self.fire_triggers:
            raise ValueError(f"fire_triggers is of Postgres, and the target is {self.target}.")

    @property
    def is_lake(self) -> bool:
        return self.target != "postgres"


def start(spark: SparkSession, config: Config, run: Run) -> StreamingQuery:
    _refuse_another_target(config, run)
    if not (config.streams or config.pattern or config.bucket):
        config = msgspec.structs.replace(config, bucket=_BUCKET)
    merging = MergingOfFiles(config.merge_files_secs) if config.is_lake else None

    def write(changes: DataFrame, batch: int) -> None:
        if merging is None:
            _apply_to_postgres(changes, config, run, batch)
        else:
            _apply_to_lake(changes, config, run, batch)
            assert isinstance(run.checkpoint, Path), "it is on S3 for other pipelines only"
            merging.after_batch(lake_of(config), run.checkpoint)

    writer = source(spark, config).writeStream.foreachBatch(write)
    return run.start(writer, "apply-changes", config.every_secs if config.is_lake else 0)


def _refuse_another_target(config: Config, run: Run) -> None:
    """A checkpoint says what is in its tables; of another target's it says nothing."""
    if (COMMITTED_FILE if config.is_lake else LAKE_NOTES) in names_in(run.checkpoint):
        raise ConfigError(
            f"The checkpoint in {run.state_dir} is of another target than {config.target}, and "
            "its position would leave out what is before it. Use another --state, or: headrace "
            "pipeline reset apply-changes."
        )


def lake_of(config: Config) -> Lake:
    root = local_path("lake", config.lake).absolute()
    return Lake(root, "iceberg" if config.target == "iceberg" else "delta")


def lake_writer(config: Config, run: Run) -> str:
    """The name that tables know this pipeline by: another one after each reset."""
    return run.producer(config.writer)


def source(spark: SparkSession, config: Config) -> DataFrame:
    options = {"fromSnapshot": "true"}  # a stream that was compacted begins with its state
    if config.bucket or config.pattern:
        # What this pipeline writes: read, it would never end.
        options["exclude"] = ",".join(n for n in (config.quarantine, config.progress) if n)
    return messages(spark, config, "binary", **options)


def _apply_to_postgres(changes: DataFrame, config: Config, run: Run, batch: int) -> None:
    options = _options(changes, config, run, batch) | {
        "url": config.postgres, "fireTriggers": str(config.fire_triggers),
        "writer": config.writer, "partitions": str(config.partitions),
        "committed": str(run.checkpoint / COMMITTED_FILE), "origin": config.origin,
    }  # fmt: skip
    # The changes of a key are in one stream, and stay in its order.
    rows = _rows(changes).repartition(config.partitions, "stream")
    _save(rows, options)


def _apply_to_lake(changes: DataFrame, config: Config, run: Run, batch: int) -> None:
    lake = lake_of(config)
    options = _options(changes, config, run, batch) | {
        "path": str(lake.root), "tableFormat": lake.format, "writer": lake_writer(config, run),
    }  # fmt: skip
    rows = _rows(changes)
    if "{table}" in config.table or "{schema}" in config.table:
        # Only the messages say which tables: one task has all, since a table is committed once.
        rows = rows.repartition(1)
    else:
        rows = rows.repartition(config.partitions, _table_of_stream(config.table))
    _save(rows, options)


def _table_of_stream(table: str) -> Column:
    """The name of the table, with its schema, as `changes.rules.qualified` has it."""
    stream = F.substring_index("stream", "/", -1)
    name = F.replace(F.lit(table), F.lit("{stream}"), stream)
    is_plain = F.instr(name, ".") == 0
    return F.when(is_plain, F.concat(F.lit("public."), name)).otherwise(name)


def _options(changes: DataFrame, config: Config, run: Run, batch: int) -> dict[str, str]:
    return {
        "table": config.table, "keys": ",".join(config.keys), "scdType": str(config.scd_type),
        "createTable": str(config.create_table), "newColumns": config.new_columns,
        "query": current_query(changes.sparkSession), "batch": str(batch),
        "checkpointLocation": str(run.checkpoint), "exactlyOnce": str(config.exactly_once),
        "quarantineUrl": config.server, "quarantineStream": config.quarantine,
        "quarantineToken": config.token,
    }  # fmt: skip


def _rows(changes: DataFrame) -> DataFrame:
    is_state = F.lower("content_type").startswith(STATE_MEDIA_TYPE)
    is_snapshot = F.coalesce(is_state, F.lit(False)).alias("is_snapshot")
    return changes.select("stream", "offset", "value", is_snapshot)


def _save(rows: DataFrame, options: dict[str, str]) -> None:
    ordered = rows.sortWithinPartitions("stream", "offset")
    ordered.write.format("headrace_apply_changes").options(**options).mode("append").save()


PIPELINE = Pipeline(
    "apply-changes", "streams of changes applied to tables of Postgres or a lake", Config, start
)

if __name__ == "__main__":
    from headrace.spark.pipelines.runner import main

    main(PIPELINE)
