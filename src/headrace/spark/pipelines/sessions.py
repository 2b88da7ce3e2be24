"""`sessions`: analytics on session events, as they come, to Postgres and to a stream.

Per session and minute: how many events, how many users were active, and how long the assistant
took to answer. A message's time is its `value.at`, its user `value.user`, its side `value.role`
(`user` or `assistant`). Each batch writes the minutes it changed, whole.
"""

from __future__ import annotations

import msgspec
import psycopg
from psycopg import sql
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from headrace.spark.batch_ids import current_query
from headrace.spark.commit_note import FILE as COMMITTED_FILE
from headrace.spark.driver_notes import STREAMS_FILE
from headrace.spark.pipelines.base import Pipeline, Run, local_postgres
from headrace.spark.pipelines.stream_source import StreamsConfig, messages
from headrace.spark.places import Place

_TABLE = """
create table if not exists {} (
  session text not null,
  minute timestamptz not null,
  events bigint not null,
  active_users bigint not null,
  answers bigint not null,
  latency_ms double precision,
  primary key (session, minute)
)
"""
_EVENT = "key string, type string, value struct<at: string, user: string, role: string>"


class Config(StreamsConfig, frozen=True, kw_only=True):
    postgres: str = msgspec.field(default_factory=local_postgres)
    table: str = "session_minutes"
    stream: str = "session-minutes"  # where each changed minute is a message
    late_mins: int = 10  # a message later than this no longer counts


def start(spark: SparkSession, config: Config, run: Run) -> StreamingQuery:
    with psycopg.connect(config.postgres) as connection:
        name = sql.Identifier(*config.table.split("."))
        connection.execute(sql.SQL(_TABLE).format(name))
    minutes = by_minute(events(messages(spark, config)), config)

    def write(changed: DataFrame, batch: int) -> None:
        # Of the checkpoint: after its loss all is written again, not taken for what is in.
        writer = f"sessions-{current_query(changed.sparkSession)}"
        changed.persist()
        try:
            _to_postgres(changed, config, writer, batch, run.checkpoint / COMMITTED_FILE)
            _to_stream(changed, config, writer, batch, run.checkpoint / STREAMS_FILE)
        finally:
            changed.unpersist()

    return run.start(minutes.writeStream.outputMode("update").foreachBatch(write), "sessions")


def events(read: DataFrame) -> DataFrame:
    """The events with a time; anything that is not a session event has none and is skipped."""
    event = F.from_json("value", _EVENT)
    timed = read.withColumn("e", event).withColumn("at", F.try_to_timestamp("e.value.at"))
    return timed.where("at is not null").select(
        F.col("stream").alias("session"),
        "at",
        F.when(F.col("e.value.role") == "user", F.col("at")).alias("asked"),
        F.when(F.col("e.value.role") == "assistant", F.col("at")).alias("answered"),
        _user().alias("user"),
    )


def _user() -> Column:
    """Who an event is about: `value.user`, or the key `user:…` of a presence."""
    said = F.nullif(F.col("e.value.user"), F.lit(""))
    return F.coalesce(said, F.regexp_extract("e.key", r"^user:(.+)$", 1))


def by_minute(found: DataFrame, config: Config) -> DataFrame:
    """One row per session and minute; the latency is from question to answer within it."""
    side = F.struct("at", "asked", "answered")
    grouped = (
        found.withWatermark("at", f"{config.late_mins} minutes")
        .groupBy("session", F.window("at", "1 minute").alias("w"))
        .agg(
            F.count("*").alias("events"),
            F.size(F.array_remove(F.collect_set("user"), "")).cast("long").alias("active_users"),
            F.array_sort(F.collect_list(side)).alias("turns"),
        )
    )
    waits = _waits(F.col("turns"))
    return grouped.select(
        "session",
        F.col("w.start").alias("minute"),
        "events",
        "active_users",
        F.size(waits).cast("long").alias("answers"),
        F.when(
            F.size(waits) > 0,
            F.aggregate(waits, F.lit(0.0), lambda total, wait: total + wait) / F.size(waits),
        ).alias("latency_ms"),
    )


def _waits(turns: Column) -> Column:
    """Milliseconds from each question to the answer that follows it."""
    asked = F.transform(turns, lambda turn: turn["asked"])
    pairs = F.arrays_zip(asked.alias("asked"), F.slice(turns, 2, 1_000_000).alias("next"))
    answered = F.filter(
        pairs, lambda pair: pair["asked"].isNotNull() & pair["next"]["answered"].isNotNull()
    )
    return F.transform(
        answered,
        lambda pair: (F.unix_millis(pair["next"]["answered"]) - F.unix_millis(pair["asked"])).cast(
            "double"
        ),
    )


def _to_postgres(
    changed: DataFrame, config: Config, writer: str, batch: int, committed: Place
) -> None:
    options = {
        "url": config.postgres, "table": config.table, "mode": "upsert", "writer": writer,
        "keys": "session,minute", "batch": str(batch), "committed": str(committed),
    }  # fmt: skip
    changed.write.format("headrace_postgres").options(**options).mode("append").save()


def _to_stream(changed: DataFrame, config: Config, producer: str, batch: int, note: Place) -> None:
    """A State Protocol change per minute, so that a browser can fold and chart it."""
    key = F.concat_ws(" ", "session", F.date_format("minute", "yyyy-MM-dd'T'HH:mm'Z'"))
    message = F.struct(
        F.lit("session-minute").alias("type"),
        key.alias("key"),
        F.struct(*changed.columns).alias("value"),
        F.struct(F.lit("upsert").alias("operation")).alias("headers"),
    )
    rows = (
        changed.select(F.to_json(message).alias("value")).coalesce(1).sortWithinPartitions("value")
    )
    options = {
        "url": config.server, "stream": config.stream, "createStreams": "true",
        "producerId": producer, "batch": str(batch), "committed": str(note),
        "failOnDataLoss": str(config.fail_on_data_loss).lower(),
    }  # fmt: skip
    if config.token:
        options["token"] = config.token
    rows.write.format("headrace").options(**options).mode("append").save()


PIPELINE = Pipeline(
    "sessions", "events, users and answer times per session and minute", Config, start
)

if __name__ == "__main__":
    from headrace.spark.pipelines.runner import main

    main(PIPELINE)
