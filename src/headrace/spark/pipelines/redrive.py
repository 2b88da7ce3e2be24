"""Records of the quarantine stream back through the pipeline that set them aside.

A redrive is a streaming query of its own, with its own checkpoint, writer and producer: a record is
taken once, whatever is killed meanwhile, and the next redrive begins behind it. What is refused
again goes to the quarantine stream again, behind the position of this run, with its new reason.
Several pipelines may share a quarantine stream; each takes the records of its own streams.
"""

from __future__ import annotations

import re

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from headrace.client import Client
from headrace.errors import StreamNotFound
from headrace.spark.pipelines import apply_changes, postgres_to_stream, stream_to_postgres
from headrace.spark.pipelines.base import ConfigError, Pipeline, PipelineConfig, Run
from headrace.spark.pipelines.runner import PipelineSpec
from headrace.spark.pipelines.stream_to_postgres import NOT_TEXT
from headrace.spark.places import Place

SUFFIX = "-redrive"
_MESSAGES_PER_BATCH = 10_000


def redrive(config: PipelineConfig, state: Place) -> PipelineSpec:
    """The run that redrives; its state is next to that of the pipeline in `state`."""
    match config:
        case stream_to_postgres.Config():
            pipeline = Pipeline(
                f"stream-to-postgres{SUFFIX}", "", stream_to_postgres.Config, _to_postgres
            )
        case postgres_to_stream.Config():
            _refuse_changes(config)
            pipeline = Pipeline(
                f"postgres-to-stream{SUFFIX}", "", postgres_to_stream.Config, _to_streams
            )
        case apply_changes.Config():
            raise ConfigError(
                "A change that is applied now would come after newer changes of its key, and the "
                "row would go back to an older value. Have its source send the row once more; of "
                "postgres-to-stream, copy the table again: headrace pipeline resnapshot --table "
                "TABLE"
            )
        case _:
            raise ConfigError(
                "Only stream-to-postgres and postgres-to-stream quarantine records, so only they "
                "can redrive them."
            )
    _check_quarantine(config)
    return PipelineSpec(
        pipeline, msgspec.structs.replace(config, progress=""), Run(True, state / pipeline.name)
    )


def _refuse_changes(config: postgres_to_stream.Config) -> None:
    if config.format == "changes":
        raise ConfigError(
            "A change that is appended now would come after newer changes of its key, and readers "
            'would go back to an older value. With format = "changes" copy the table again: '
            "headrace pipeline resnapshot --table TABLE"
        )


def _check_quarantine(config: stream_to_postgres.Config | postgres_to_stream.Config) -> None:
    if not config.quarantine:
        raise ConfigError("The pipeline has no quarantine stream, so there is nothing to redrive.")
    with Client(config.server, token=config.token or None) as client:
        try:
            client.stream(config.quarantine).head()
        except StreamNotFound:
            raise ConfigError(
                f"There is no stream {config.quarantine} at {config.server}: nothing was "
                "quarantined, or quarantine names another stream."
            ) from None


def _records(
    spark: SparkSession, config: PipelineConfig, quarantine: str, record: str
) -> DataFrame:
    """The records of the quarantine stream that are whole: a cut one cannot be written."""
    reader = spark.readStream.format("headrace").schema("stream string, value string")
    if config.token:
        reader = reader.option("token", config.token)
    read = (
        reader.option("url", config.server)
        .option("subscribe", quarantine)
        .option("maxMessagesPerTrigger", _MESSAGES_PER_BATCH)
        .load()
    )
    schema = f"reason string, record struct<{record}>, cut map<string,long>"
    parsed = read.select(F.from_json("value", schema).alias("bad"))
    return parsed.select("bad.*").where("cut is null")


def _to_postgres(
    spark: SparkSession, config: stream_to_postgres.Config, run: Run
) -> StreamingQuery:
    record = "stream_name string, payload string, ds_offset string"
    bad = _records(spark, config, config.quarantine, record).select("reason", "record.*")
    ours = bad.where("payload is not null and ds_offset is not null").where(_is_read(config))
    payload = F.col("payload")
    value = F.when(F.startswith("reason", F.lit(NOT_TEXT)), F.unbase64(payload)).otherwise(
        payload.cast("binary")
    )
    messages = ours.select(
        F.col("stream_name").alias("stream"),
        value.alias("value"),
        F.col("ds_offset").alias("offset"),
    )
    again = msgspec.structs.replace(config, writer=f"{config.writer}{SUFFIX}")
    writer = stream_to_postgres.sink(stream_to_postgres.rows(messages, again), again)
    return run.start(writer, run.state_dir.name)


def _is_read(config: stream_to_postgres.Config) -> Column:
    """Whether a record comes from a stream that this pipeline reads."""
    stream = F.col("stream_name")
    if config.bucket:
        return stream.startswith(f"/{config.bucket}/")
    if config.pattern:
        return stream.rlike(f"^(?:{config.pattern})$")
    return stream.isin(*config.streams)


def _to_streams(spark: SparkSession, config: postgres_to_stream.Config, run: Run) -> StreamingQuery:
    config = postgres_to_stream.with_stream(config, run)
    bad = _records(spark, config, config.quarantine, "stream string, value string")
    messages = bad.select("record.*").where("value is not null").where(_is_written(config))
    again = msgspec.structs.replace(config, producer=f"{config.producer}{SUFFIX}")
    return run.start(postgres_to_stream.sink(messages, again, run), run.state_dir.name)


def _is_written(config: postgres_to_stream.Config) -> Column:
    """Whether a record was meant for a stream that this pipeline writes."""
    names = []
    for table in config.tables:
        schema, _, name = table.rpartition(".")
        marks = {"{schema}": schema or "public", "{table}": name, "{key}": None}
        parts = re.split(r"(\{(?:schema|table|key)\})", config.stream)
        names.append("".join(".*" if p == "{key}" else _quoted(marks.get(p) or p) for p in parts))
    return F.col("stream").rlike(f"(?s)^(?:{'|'.join(names)})$")


def _quoted(text: str) -> str:
    """`text` as a pattern of Java's that matches only it."""
    return "".join(c if c.isalnum() or c in "_/" else f"\\{c}" for c in text)
