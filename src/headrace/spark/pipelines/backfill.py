"""A range of offsets of streams, read again and written as the pipeline writes it.

A backfill is one batch of a writer of its own, which is named after what is read and how it becomes
rows. Repeated, it finds itself in the ledger and adds nothing; with another `extract`, `schema` or
`table` it is another backfill.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from pyspark.sql import SparkSession

from headrace.errors import InvalidOffset
from headrace.protocol.offsets import BEGINNING, START, Position, parse_token
from headrace.spark.pipelines import (
    apply_changes,
    archive,
    postgres_to_stream,
    sessions,
    stream_to_postgres,
)
from headrace.spark.pipelines.base import ConfigError, Pipeline, PipelineConfig, Run
from headrace.spark.pipelines.batch_job import Job, started
from headrace.spark.pipelines.runner import PipelineSpec
from headrace.spark.places import Place
from headrace.spark.session import activate

NAME = "stream-to-postgres-backfill"
_EARLIEST = "earliest"
# The ledger counts by partition: a repeat on other hardware must be cut alike.
_PARTITIONS_MAX = 4


@dataclass(frozen=True)
class BackfillRange:
    """What is read: after `starts`, up to and including `ends`, by stream."""

    starts: Mapping[str, str]
    ends: Mapping[str, str]

    @classmethod
    def of(cls, config: stream_to_postgres.Config, start: str, end: str) -> BackfillRange:
        starts = _offsets("--from", start, config)
        ends = _offsets("--to", end, config)
        if starts.keys() != ends.keys():
            raise ConfigError("--from and --to name different streams.")
        for stream, at in ends.items():
            if _position(starts[stream]) >= _position(at):
                raise ConfigError(f"{stream}: --from must lie before --to.")
        return cls(starts, ends)

    @property
    def messages(self) -> int:
        pairs = ((self.starts[name], end) for name, end in self.ends.items())
        return sum(_position(end).messages - _position(start).messages for start, end in pairs)


def backfill(config: PipelineConfig, state: Place, start: str, end: str) -> PipelineSpec:
    if not isinstance(config, stream_to_postgres.Config):
        raise ConfigError(_refusal(config))
    wanted = BackfillRange.of(config, start, end)

    def write(spark: SparkSession, config: stream_to_postgres.Config) -> int:
        return _write(spark, config, wanted)

    pipeline = Pipeline(
        NAME,
        "",
        stream_to_postgres.Config,
        lambda spark, config, run: started(Job(lambda job: write(spark, config))),
    )
    return PipelineSpec(
        pipeline, msgspec.structs.replace(config, progress=""), Run(True, state / NAME)
    )


def _refusal(config: PipelineConfig) -> str:
    """Why only stream-to-postgres has it, and what serves the purpose elsewhere."""
    instead = "it keeps nothing that a range could be written to again."
    if isinstance(config, postgres_to_stream.Config):
        instead = (
            "Postgres does not keep old changes. Copy a table again: headrace pipeline resnapshot."
        )
    elif isinstance(config, apply_changes.Config):
        instead = (
            "old changes would undo newer ones. Have the source send the rows once more, such as "
            "with headrace pipeline resnapshot."
        )
    elif isinstance(config, archive.Config):
        instead = "its table would have the messages twice. Archive into another table."
    elif isinstance(config, sessions.Config):
        instead = "it counts from the whole of a stream. Use headrace pipeline reset sessions."
    return f"Only stream-to-postgres can be backfilled; of this pipeline, {instead}"


def _write(spark: SparkSession, config: stream_to_postgres.Config, wanted: BackfillRange) -> int:
    activate(spark)  # a job has a thread of its own
    if config.create_table:
        stream_to_postgres.create_table(config)
    reader = spark.read.format("headrace").option("url", config.server)
    if config.token:
        reader = reader.option("token", config.token)
    messages = (
        reader.option("subscribe", ",".join(wanted.ends))
        .option("startingOffsets", json.dumps(dict(wanted.starts)))
        .option("endingOffsets", json.dumps(dict(wanted.ends)))
        .option("maxPartitions", _PARTITIONS_MAX)
        .load()
    )
    again = msgspec.structs.replace(config, writer=writer_of(config, wanted))
    options = stream_to_postgres.sink_options(again) | {"batch": "0"}
    rows = stream_to_postgres.rows(messages, again)
    rows.write.format("headrace_postgres").options(**options).mode("append").save()
    return wanted.messages


def writer_of(config: stream_to_postgres.Config, wanted: BackfillRange) -> str:
    """The ledger's name for this backfill."""
    parts = (
        config.server, config.table, config.extract, config.schema,
        dict(wanted.starts), dict(wanted.ends),
    )  # fmt: skip
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
    return f"{config.writer}-backfill-{digest}"


def _offsets(option: str, given: str, config: stream_to_postgres.Config) -> dict[str, str]:
    """By stream, from one offset or from JSON such as `{"orders": "<offset>"}`."""
    if not given.startswith("{"):
        return {_only_stream(option, config): _checked(option, given)}
    try:
        found = msgspec.json.decode(given, type=dict[str, str])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{option} is not JSON of streams and offsets: {error}.") from None
    if not found or any("," in name for name in found):
        raise ConfigError(f"{option} must name streams without a comma in their names.")
    return {name: _checked(option, offset) for name, offset in sorted(found.items())}


def _only_stream(option: str, config: stream_to_postgres.Config) -> str:
    names: Sequence[str] = () if config.pattern or config.bucket else config.streams
    if len(names) == 1:
        return names[0]
    raise ConfigError(
        f"{option}: this pipeline reads several streams, so name the stream: "
        f'{option} \'{{"STREAM": "OFFSET"}}\'.'
    )


def _checked(option: str, offset: str) -> str:
    if option == "--from" and offset in (_EARLIEST, BEGINNING):
        return BEGINNING
    try:
        parse_token(offset)
    except InvalidOffset:
        raise ConfigError(
            f"{option}: {offset!r} is not an offset of a stream. `headrace head STREAM` prints the "
            "newest; the column ds_offset has those of rows."
        ) from None
    return offset


def _position(offset: str) -> Position:
    return START if offset == BEGINNING else parse_token(offset)
