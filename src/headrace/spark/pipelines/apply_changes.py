"""`apply-changes`: streams of changes applied to Postgres tables, so that those hold the rows.

The changes are State Protocol messages, those that `postgres-to-stream` writes, session events, or
Debezium's envelope. A table has the rows as they are now (SCD type 1), or every version of each
with the time it was valid (SCD type 2).
"""

from __future__ import annotations

from typing import Literal

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from headrace.changes.rules import NewColumns
from headrace.client.state import STATE_MEDIA_TYPE
from headrace.spark.batch_ids import current_query
from headrace.spark.commit_note import FILE as COMMITTED_FILE
from headrace.spark.pipelines.base import BYTES_PER_BATCH, Pipeline, Run, local_postgres
from headrace.spark.pipelines.stream_source import StreamsConfig, messages

_BUCKET = "postgres"  # where postgres-to-stream writes changes
_PARTITIONS = 4
_MARKS = ("{stream}", "{table}", "{schema}")


class Config(StreamsConfig, frozen=True, kw_only=True):
    streams: tuple[str, ...] = ()  # without streams, pattern and bucket: the bucket postgres
    postgres: str = msgspec.field(default_factory=local_postgres)
    table: str = "{stream}"  # and {table}, {schema} as the messages say
    keys: tuple[str, ...] = ()  # else the table's primary key
    scd_type: Literal[1, 2] = 1
    create_table: bool = True
    new_columns: NewColumns = "add"
    fire_triggers: bool = True  # false: neither triggers nor foreign keys of the tables
    quarantine: str = "quarantine"  # empty: what cannot be applied ends the pipeline
    writer: str = "apply-changes"  # the ledger's name for this pipeline
    origin: str = "headrace"  # marks the rows, so that postgres-to-stream leaves them out
    partitions: int = _PARTITIONS  # tasks per batch; a stream is in one of them
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


def start(spark: SparkSession, config: Config, run: Run) -> StreamingQuery:
    if not (config.streams or config.pattern or config.bucket):
        config = msgspec.structs.replace(config, bucket=_BUCKET)

    def write(changes: DataFrame, batch: int) -> None:
        _apply(changes, config, run, batch)

    return run.start(source(spark, config).writeStream.foreachBatch(write), "apply-changes")


def source(spark: SparkSession, config: Config) -> DataFrame:
    options = {"fromSnapshot": "true"}  # a stream that was compacted begins with its state
    if config.bucket or config.pattern:
        # What this pipeline writes: read, it would never end.
        options["exclude"] = ",".join(n for n in (config.quarantine, config.progress) if n)
    return messages(spark, config, "binary", **options)


def _apply(changes: DataFrame, config: Config, run: Run, batch: int) -> None:
    options = {
        "url": config.postgres, "table": config.table, "keys": ",".join(config.keys),
        "scdType": str(config.scd_type), "createTable": str(config.create_table),
        "newColumns": config.new_columns, "fireTriggers": str(config.fire_triggers),
        "writer": config.writer, "query": current_query(changes.sparkSession),
        "batch": str(batch), "partitions": str(config.partitions),
        "committed": str(run.checkpoint / COMMITTED_FILE),
        "checkpointLocation": str(run.checkpoint),
        "origin": config.origin, "exactlyOnce": str(config.exactly_once),
        "quarantineUrl": config.server, "quarantineStream": config.quarantine,
        "quarantineToken": config.token,
    }  # fmt: skip
    rows = (
        changes.select(
            "stream",
            "offset",
            "value",
            F.coalesce(F.lower("content_type").startswith(STATE_MEDIA_TYPE), F.lit(False)).alias(
                "is_snapshot"
            ),
        )
        # The changes of a key are in one stream, and stay in its order.
        .repartition(config.partitions, "stream")
        .sortWithinPartitions("stream", "offset")
    )
    rows.write.format("headrace_apply_changes").options(**options).mode("append").save()


PIPELINE = Pipeline("apply-changes", "streams of changes applied to Postgres tables", Config, start)

if __name__ == "__main__":
    from headrace.spark.pipelines.runner import main

    main(PIPELINE)
