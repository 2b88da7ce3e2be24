"""`stream-to-postgres`: every message of a stream, or of many, as a row of a table.

The table is the reference's `session_events` by default. What is not a JSON object, or
does not fit the declared schema, or Postgres refuses, goes to the quarantine stream with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from operator import or_

import msgspec
import psycopg
from psycopg import sql
from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from headrace.spark.pipelines.base import (
    BYTES_PER_BATCH,
    ConfigError,
    Pipeline,
    PipelineConfig,
    Run,
    local_postgres,
)
from headrace.spark.pipelines.stream_source import check_names

_TABLE = """
create table if not exists {} (
  id serial primary key,
  stream_name text not null,
  event_key text,
  event_type text,
  operation text,
  payload jsonb not null,
  ds_offset text,
  received_at timestamptz default now()
)
"""

NOT_TEXT = "the message is not UTF-8 text; payload is base64 of its bytes"
_SESSION_EVENT = {"event_key": "$.key", "event_type": "$.type", "operation": "$.operation"}


class Config(PipelineConfig, frozen=True, kw_only=True):
    streams: tuple[str, ...] = ("session-events",)
    pattern: str = ""  # a regular expression instead of a list
    bucket: str = ""  # or every stream of a bucket
    starting: str = "earliest"
    postgres: str = msgspec.field(default_factory=local_postgres)
    table: str = "session_events"
    create_table: bool = True
    # Column to path inside the message. Other columns are filled as in the reference.
    extract: dict[str, str] = msgspec.field(default_factory=lambda: dict(_SESSION_EVENT))
    schema: str = ""  # what a message must fit, such as "key string, value struct<n: int>"
    quarantine: str = "quarantine"
    writer: str = "stream-to-postgres"  # the ledger's name for this pipeline
    origin: str = "headrace"  # marks the rows, so that postgres-to-stream leaves them out
    messages_per_batch: int = 50_000
    bytes_per_batch: int = BYTES_PER_BATCH
    fail_on_data_loss: bool = True  # off: begin a trimmed stream where it begins now

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.streams, self.pattern)
        _wanted(self.extract)
        if "," in self.quarantine:
            raise ValueError(f"quarantine: {self.quarantine!r} has a comma.")
        if not self.bucket and not self.pattern and self.quarantine in self.streams:
            raise ValueError(f"{self.quarantine} is both read and the quarantine stream.")


def start(spark: SparkSession, config: Config, run: Run) -> StreamingQuery:
    if config.create_table:
        create_table(config)
    return run.start(sink(rows(source(spark, config), config), config), "stream-to-postgres")


def sink(made: DataFrame, config: Config) -> DataStreamWriter:
    return made.writeStream.format("headrace_postgres").options(**sink_options(config))


def sink_options(config: Config) -> dict[str, str]:
    """Of the data source `headrace_postgres`, for a query or a batch."""
    return {
        "url": config.postgres,
        "table": config.table,
        "writer": config.writer,
        "origin": config.origin,
        "exactlyOnce": str(config.exactly_once).lower(),
        "reasonColumn": "reason",
        "quarantineUrl": config.server,
        "quarantineStream": config.quarantine,
        "quarantineToken": config.token,
    }


def source(spark: SparkSession, config: Config) -> DataFrame:
    reader = spark.readStream.format("headrace").option("url", config.server)
    if config.token:
        reader = reader.option("token", config.token)
    if config.bucket:
        reader = reader.option("bucket", config.bucket).option("exclude", _own_streams(config))
    elif config.pattern:
        reader = reader.option("subscribePattern", config.pattern)
        reader = reader.option("exclude", _own_streams(config))
    else:
        reader = reader.option("subscribe", ",".join(config.streams))
    return (
        reader.option("startingOffsets", config.starting)
        .option("maxMessagesPerTrigger", config.messages_per_batch)
        .option("maxBytesPerTrigger", config.bytes_per_batch)
        .option("failOnDataLoss", str(config.fail_on_data_loss).lower())
        .load()
    )


def _own_streams(config: Config) -> str:
    """What this pipeline writes: read, it would never end."""
    return ",".join(name for name in (config.quarantine, config.progress) if name)


def rows(messages: DataFrame, config: Config) -> DataFrame:
    """The table's columns and `reason`, which says why a message cannot be a row."""
    text = messages.withColumn("payload", F.col("value").cast("string"))
    is_text = F.is_valid_utf8("payload")
    is_object = is_text & F.ltrim("payload", F.lit(" \t\r\n")).startswith("{")
    wanted = _wanted(config.extract)
    read = text.withColumn("found", F.when(is_object, F.from_json("payload", wanted, _KEEP)))
    reason = (
        F.when(~is_text, NOT_TEXT)
        .when(~is_object, "the message is not a JSON object")
        .when(F.col("found._corrupt").isNotNull() | _is_more(text), "the message is not JSON")
    )
    if config.schema:
        declared = f"{config.schema}, _corrupt string"
        read = read.withColumn("declared", F.from_json("payload", declared, _KEEP))
        kind = _kind(config.schema)
        misfit = reduce(
            or_, _misses(F.col("declared"), kind), F.col("declared._corrupt").isNotNull()
        )
        reason = reason.when(misfit, f"the message does not fit the schema {config.schema}")
    return read.select(
        F.col("stream").alias("stream_name"),
        *(_at(path).alias(column) for column, path in config.extract.items()),
        F.when(is_text, F.col("payload")).otherwise(F.base64("value")).alias("payload"),
        F.col("offset").alias("ds_offset"),
        reason.alias("reason"),
    )


def _kind(schema: str) -> StructType:
    try:
        found = StructType.fromDDL(schema)
    except ParseException as error:
        raise ConfigError(f"schema: Spark cannot read {schema!r}: {error}") from None
    assert isinstance(found, StructType), "check_schema has found fields"
    return found


def _is_more(messages: DataFrame) -> Column:
    """Whether more than one JSON value is there: from_json looks no further than the first.

    Behind a value in brackets, what is more has to begin with `]` to be passed over; in braces,
    with `}`. What a JSON stream holds the server has checked.
    """
    payload = F.col("payload")
    listed = F.from_json(F.concat(F.lit("["), payload, F.lit("]")), "array<string>")
    held = F.from_json(
        F.concat(F.lit('{"v":'), payload, F.lit("}")), "v string, _corrupt string", _KEEP
    )
    found = F.coalesce(F.size(listed) != 1, F.lit(True)) | held.getField("_corrupt").isNotNull()
    if "content_type" not in messages.columns:
        return found
    is_checked = F.lower("content_type").startswith("application/json")
    return F.when(is_checked, F.lit(False)).otherwise(found)


def _misses(column: Column, kind: DataType) -> Iterator[Column]:
    """Where a value that must not be null is: from_json takes every field for one that may be."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            inner = column.getField(field.name)
            if not field.nullable:
                yield column.isNotNull() & inner.isNull()
            yield from _misses(inner, field.dataType)
    elif isinstance(kind, ArrayType):
        element = kind.elementType
        if any(True for _ in _misses(F.lit(None), element)):
            yield F.exists(column, lambda each: reduce(or_, _misses(each, element)))
    elif isinstance(kind, MapType):
        yield from _misses(F.map_values(column), ArrayType(kind.valueType))


_KEEP = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}


_PATH = re.compile(r"\$(\.[^.\[\]`]+)+")


def _parts(path: str) -> list[str]:
    if not _PATH.fullmatch(path):
        raise ConfigError(f"extract: {path!r} is not a path such as $.key or $.value.status.")
    return path[2:].split(".")


def _wanted(extract: dict[str, str]) -> str:
    """A schema of just the paths asked for: one parse finds them all."""
    if not extract:
        raise ConfigError("extract names no column: give one at least, or leave it out.")
    tree: dict[str, object] = {}
    for path in extract.values():
        if any(other.startswith(f"{path}.") for other in extract.values()):
            raise ConfigError(f"extract: {path!r} is asked for as a whole and in part.")
        level = tree
        *above, leaf = _parts(path)
        for part in above:
            level = level.setdefault(part, {})  # type: ignore[assignment]
        level.setdefault(leaf, "string")
    return f"{_fields(tree)}, _corrupt string"


def _fields(tree: dict[str, object], mark: str = " ") -> str:
    kinds = {
        name: f"struct<{_fields(kind, ': ')}>" if isinstance(kind, dict) else "string"
        for name, kind in tree.items()
    }
    return ", ".join(f"`{name}`{mark}{kind}" for name, kind in kinds.items())


def _at(path: str) -> Column:
    return F.col(".".join(["found", *(f"`{part}`" for part in _parts(path))]))


def create_table(config: Config) -> None:
    with psycopg.connect(config.postgres) as connection:
        name = sql.Identifier(*config.table.split("."))
        connection.execute(sql.SQL(_TABLE).format(name))


PIPELINE = Pipeline(
    "stream-to-postgres", "messages of streams into a Postgres table", Config, start
)

if __name__ == "__main__":
    from headrace.spark.pipelines.runner import main

    main(PIPELINE)
