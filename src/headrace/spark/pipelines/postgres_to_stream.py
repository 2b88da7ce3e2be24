"""`postgres-to-stream`: changes of tables as messages, by table or by key.

As plain rows (what the reference writes to `pg-items`) or as changes of the State Protocol. Rows
that `stream-to-postgres` wrote are left out, unless `origin` asks for them: they came from a
stream. A row that the server refuses for good goes to the quarantine stream with the reason.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Collection
from contextlib import suppress
from functools import reduce
from typing import Literal

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.client import Client
from headrace.errors import HeadraceError
from headrace.postgres.copies import OnPartitions
from headrace.postgres.origins import Origin
from headrace.spark.object_store import S3Path
from headrace.spark.pipelines.base import (
    BYTES_PER_BATCH,
    ConfigError,
    Pipeline,
    PipelineConfig,
    Run,
    local_postgres,
)
from headrace.spark.places import write_whole
from headrace.spark.sources.postgres_changes import ROW_BYTES_MAX
from headrace.spark.streams.row_checks import name_refusal

_ROWS = ("insert",)
_CHANGES = ("insert", "update", "delete", "truncate", "schema")
_STREAM_OF_ROWS = "pg-{table}"
_STREAM_OF_CHANGES = "/postgres/{table}"  # in a bucket, where compact gives history back
STREAM_FILE = "stream"
_RFC_3339 = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"  # Z in UTC, which is a session's usual time zone
_GROWS = (
    "%s grows for ever, and nothing gives its history back: the server refuses what exceeds "
    "limits.max_stream_bytes (in memory mode 10 MiB unless set). Raise it where the server runs, "
    'or set format = "changes" and run compact.'
)
logger = logging.getLogger(__name__)


class Config(PipelineConfig, frozen=True, kw_only=True):
    postgres: str = msgspec.field(default_factory=local_postgres)
    tables: tuple[str, ...] = ("items",)
    electric: str = msgspec.field(default_factory=lambda: os.environ.get("ELECTRIC_URL", ""))
    slot: str = ""  # else headrace_<database>
    stream: str = ""  # {schema}, {table} and {key} are filled in; else one of the two below
    format: Literal["rows", "changes"] = "rows"
    timestamps: bool = False  # of changes: headers.timestamp is when Postgres committed them
    operations: tuple[
        Literal["insert", "update", "delete", "truncate", "schema"], ...
    ] = ()  # the usual
    metadata: tuple[Literal["before", "lsn"], ...] = ()  # of changes: the old row, the position
    snapshot: Literal["initial", "never"] = "initial"
    on_lost_slot: Literal["snapshot", "fail"] = "snapshot"
    origin: Origin = "others"
    on_partitions: OnPartitions = "report"  # of those that come or go with rows
    without_key: Literal["allow", "refuse"] = "allow"  # tables without a primary key
    quarantine: str = "quarantine"  # empty: a row that the server refuses ends the pipeline
    producer: str = "postgres-to-stream"  # a lost checkpoint is refused, not written twice
    changes_per_batch: int = 50_000
    bytes_per_batch: int = BYTES_PER_BATCH  # of rows as JSON: a batch is in memory as a whole
    row_bytes_max: int = ROW_BYTES_MAX
    fail_on_data_loss: bool = True  # of a stream it writes to; off: go on if one is lost

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metadata and self.format == "rows":
            raise ValueError('metadata is part of a change: it needs format = "changes".')

    def check_run(self, run: Run) -> None:
        config = with_stream(self, run)
        _check_streams(config)
        _check_quarantine(config)


def start(spark: SparkSession, config: Config, run: Run) -> StreamingQuery:
    config = with_stream(config, run)
    config.check_run(run)
    warn_of_growth(config)
    _create_bucket(config)
    made = messages(source(spark, config, consumer=consumer_name(run)), config)
    return run.start(sink(made, config, run), "postgres-to-stream")


def sink(made: DataFrame, config: Config, run: Run) -> DataStreamWriter:
    writer = (
        made.writeStream.format("headrace")
        .option("url", config.server)
        .option("createStreams", "true")
        .option("producerId", run.producer(config.producer))
        .option("exactlyOnce", str(config.exactly_once).lower())
        .option("failOnDataLoss", str(config.fail_on_data_loss).lower())
        .option("quarantineStream", config.quarantine)
    )
    return writer.option("token", config.token) if config.token else writer


def with_stream(config: Config, run: Run) -> Config:
    """The configuration with the stream it writes to, which a state keeps once it has begun.

    Earlier versions wrote changes to the streams of rows, too.
    """
    if config.stream:
        return config
    note = run.state_dir / STREAM_FILE
    if config.format == "rows":
        return msgspec.structs.replace(config, stream=_STREAM_OF_ROWS)
    try:
        stream = note.read_text("utf-8")
    except FileNotFoundError:
        stream = _STREAM_OF_ROWS if run.has_begun else _STREAM_OF_CHANGES
        run.state_dir.mkdir(parents=True, exist_ok=True)
        write_whole(note, stream)
    return msgspec.structs.replace(config, stream=stream)


def _create_bucket(config: Config) -> None:
    """As streams are made, so is the bucket they are in, where its name is known."""
    _, _, place = config.stream.partition("/") if config.stream.startswith("/") else ("", "", "")
    bucket = place.partition("/")[0]
    if not bucket or "{" in bucket:
        return
    # If the server is unreachable or refuses, the first batch reports it with the stream's name.
    with suppress(HeadraceError), Client(config.server, token=config.token or None) as client:
        client.bucket(bucket).create()


def _check_streams(config: Config) -> None:
    """A reset is of a whole stream, and only a table's name identifies its schema there."""
    if _cannot_reset(config) and config.on_partitions == "resnapshot":
        raise ConfigError(
            'on_partitions = "resnapshot" begins with a reset, which streams of one row each '
            "({key} in stream) cannot take. Report partitions, or leave truncate out of operations."
        )
    if config.format == "rows" or "{key}" in config.stream:
        return
    streams: dict[str, str] = {}
    for table in config.tables:
        schema, _, name = table.rpartition(".")
        stream = config.stream.replace("{schema}", schema or "public").replace("{table}", name)
        other = streams.setdefault(stream, table)
        if other != table and "truncate" in (config.operations or _CHANGES):
            raise ConfigError(
                f"{other} and {table} share the stream {stream}: a truncate of one would reset "
                "both. Give each its own, with {schema} or {table} in stream, or leave truncate "
                "out of operations."
            )


def warn_of_growth(config: Config) -> None:
    if config.format == "rows":
        logger.warning(_GROWS, config.stream)


def _cannot_reset(config: Config) -> bool:
    """Whether deletes may be missed: a reset has no stream to go to where every row has its own."""
    follows = config.format == "changes" and "truncate" in (config.operations or _CHANGES)
    return follows and "{key}" in config.stream


def _tells_columns(config: Config) -> bool:
    """Whether a snapshot begins with the columns of its tables: from them a mirror makes its own.

    Rows of earlier versions came without, and those of a stream each have nowhere to send them.
    """
    wanted = config.format == "changes" and "schema" in (config.operations or _CHANGES)
    return wanted and "{key}" not in config.stream


def _check_quarantine(config: Config) -> None:
    """What no row can help: a name that is bad in every row would set all of them aside."""
    for table in config.tables if config.quarantine else ():
        schema, _, name = table.rpartition(".")
        stream = config.stream.replace("{schema}", schema or "public").replace("{table}", name)
        reason = name_refusal(stream.replace("{key}", "some-key"))
        if reason is not None:
            raise ConfigError(f"stream: {stream!r} cannot be the stream of {table}. {reason}")
        if stream == config.quarantine:
            raise ConfigError(
                f"{stream} is both the stream of {table} and the quarantine stream. Give one of "
                "them another name."
            )
    if config.quarantine and (reason := name_refusal(config.quarantine)):
        raise ConfigError(f"quarantine: {config.quarantine!r} cannot be a stream. {reason}")


def consumer_name(run: Run) -> str:
    """The owner that a second pipeline on the same slot is shown."""
    place = run.state_dir
    return f"{socket.gethostname()}:{place if isinstance(place, S3Path) else place.resolve()}"


def source(spark: SparkSession, config: Config, *, consumer: str = "") -> DataFrame:
    if config.electric:
        shapes = (_shape(spark, config, table) for table in config.tables)
        return reduce(DataFrame.unionByName, shapes)
    return (
        spark.readStream.format("headrace_postgres_changes")
        .option("url", config.postgres)
        .option("tables", ",".join(config.tables))
        .option("slot", config.slot)
        .option("snapshot", config.snapshot)
        .option("onLostSlot", config.on_lost_slot)
        .option("origin", config.origin)
        .option("onPartitions", config.on_partitions)
        .option("withoutKey", config.without_key)
        .option("onReset", "fail" if _cannot_reset(config) else "report")
        .option("consumer", consumer)
        .option("snapshotColumns", str(_tells_columns(config)).lower())
        .option("maxChangesPerTrigger", config.changes_per_batch)
        .option("maxBytesPerTrigger", config.bytes_per_batch)
        .option("maxRowBytes", config.row_bytes_max)
        .load()
    )


def _shape(spark: SparkSession, config: Config, table: str) -> DataFrame:
    reader = spark.readStream.format("headrace_shapes").option("url", config.electric)
    return (
        reader.option("table", table)
        .option("onReset", "fail" if _cannot_reset(config) else "report")
        .option("replica", "full")
        .option("maxChangesPerTrigger", config.changes_per_batch)
        .option("maxBytesPerTrigger", config.bytes_per_batch)
        .load()
    )


def messages(changes: DataFrame, config: Config) -> DataFrame:
    """The stream each change goes to, and the message it is there."""
    operations = config.operations or (_ROWS if config.format == "rows" else _CHANGES)
    op = F.col("op")
    operation = F.when(op == "snapshot", "insert").when(op == "reset", "truncate").otherwise(op)
    wanted = changes.withColumn("operation", operation).where(
        F.col("operation").isin(list(operations))
    )
    if config.format == "rows":
        # A deleted row has no content; what is known of it is its key.
        shaped = wanted.withColumn("value", F.coalesce("value", "key")).where("value is not null")
    else:
        shaped = _state_changes(wanted, config)
    assert config.stream, "with_stream gives one"
    by_key = "{key}" in config.stream
    if by_key:
        shaped = shaped.where("key is not null")  # a truncate has no key to go to
    return shaped.select(_stream(config.stream).alias("stream"), "value")


def _state_changes(changes: DataFrame, config: Config) -> DataFrame:
    """State Protocol messages. A change of key is an insert of the new and a delete of the old:
    in this order, because of a large value that did not change the old one is all there is."""
    old_key = F.map_filter(_map("old"), lambda name, _: F.map_contains_key(_map("key"), name))
    moved = (F.col("op") == "update") & (F.map_values(old_key) != F.map_values(_map("key")))
    nothing = F.lit(None).cast("string")
    was = F.to_json(old_key)

    def step(
        operation: Column, key: Column, row: Column, old: Column, was: Column = nothing
    ) -> Column:
        named = {"operation": operation, "key": key, "row": row, "old": old, "was": was}
        return F.struct(*(column.alias(name) for name, column in named.items()))

    one = step(F.col("operation"), F.col("key"), F.col("value"), F.col("old"))
    new = step(F.lit("insert"), F.col("key"), F.col("value"), nothing, was)
    gone = step(F.lit("delete"), was, nothing, F.col("old"))
    steps = F.when(moved, F.array(new, gone)).otherwise(F.array(one))
    each = changes.withColumn("each", F.explode(steps))
    at = F.date_format("committed_at", _RFC_3339) if config.timestamps else nothing
    flat = each.select("table", "xid", "unchanged", "lsn", "seq", at.alias("timestamp"), "each.*")
    operation = F.col("operation")
    control = F.struct(F.lit("reset").alias("control"), "timestamp")
    reset = F.to_json(F.struct(control.alias("headers")))
    told = F.when(operation == "truncate", reset).when(operation == "schema", _schema())
    return flat.withColumn("value", told.otherwise(_change(config.metadata)))


def _schema() -> Column:
    """`{"type":…,"value":{"columns":…},"headers":{"control":"schema"}}`: who folds changes
    passes over a control message that it does not know."""
    named = F.to_json(F.struct(_name("table").alias("type")))
    head = F.regexp_replace(named, r"\}$", "")
    tail = F.lit(',"headers":{"control":"schema"}}')
    return F.concat(head, F.lit(',"value":'), "row", tail)


def _change(metadata: Collection[str]) -> Column:
    """`{"type":…,"key":…,"value":…,"old_value":…,"headers":…}`, rows as they came, without parsing
    them."""
    is_partial = (F.size("unchanged") > 0) & F.col("row").isNotNull()  # TOAST that did not change
    partial = F.when(is_partial, F.col("unchanged"))
    was = F.when(F.col("was").isNotNull(), _text("was"))  # of a change of key
    txid = F.when(F.col("xid") > 0, F.col("xid").cast("string"))
    position = ("lsn", "seq") if "lsn" in metadata else ()
    headers = F.to_json(
        F.struct(
            "operation",
            txid.alias("txid"),
            "timestamp",
            partial.alias("unchanged"),
            was.alias("was"),
            *position,
        )
    )
    named = F.to_json(F.struct(_name("table").alias("type"), _text("key").alias("key")))
    head = F.regexp_replace(named, r"\}$", "")
    rows = [_member("value", "row")]
    if "before" in metadata:
        rows.append(_member("old_value", "old"))
    return F.concat(head, *rows, F.lit(',"headers":'), headers, F.lit("}"))


def _member(name: str, column: str) -> Column:
    """A column of JSON as a member of an object; nothing where it is null."""
    found = F.concat(F.lit(f',"{name}":'), column)
    return F.when(F.col(column).isNotNull(), found).otherwise("")


def _map(column: str) -> Column:
    return F.from_json(column, "map<string,string>")


def _text(key: str) -> Column:
    """A key as text: its value, or its values with a slash between, which then is %2F in them.

    Who folds changes passes over an empty key, so it has a name, which no other value may have.
    """
    values = F.map_values(_map(key))
    is_such_a_name = values[0].rlike("^%(25)*empty$")
    alone = (
        F.when(values[0] == "", F.array(F.lit("%empty")))
        .when(is_such_a_name, F.array(F.replace(values[0], F.lit("%"), F.lit("%25"))))
        .otherwise(values)
    )
    several = F.transform(values, lambda value: F.coalesce(_escaped(value), F.lit("%null")))
    return F.array_join(F.when(F.size(values) == 1, alone).otherwise(several), "/")


def _escaped(value: Column) -> Column:
    return F.replace(F.replace(value, F.lit("%"), F.lit("%25")), F.lit("/"), F.lit("%2F"))


def _name(table: str) -> Column:
    return F.element_at(F.split(table, r"\."), -1)


def _stream(template: str) -> Column:
    filled = F.lit(template)
    for mark, column in (
        ("{schema}", F.split("table", r"\.")[0]),
        ("{table}", _name("table")),
        ("{key}", _text("key")),
    ):
        if mark in template:
            filled = F.replace(filled, F.lit(mark), column)
    return filled


PIPELINE = Pipeline("postgres-to-stream", "changes of Postgres tables into streams", Config, start)

if __name__ == "__main__":
    from headrace.spark.pipelines.runner import main

    main(PIPELINE)
