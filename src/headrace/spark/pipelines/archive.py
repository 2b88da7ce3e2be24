"""`archive`: messages of streams into a lake table, partitioned by day and by shards of streams.

A shard is a hash of the stream's name: a partition per stream would be a file per stream and day.
Small files of past batches are merged while it runs, and when it starts.
"""

from __future__ import annotations

import re
import threading
from typing import Literal

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from headrace.spark.lake.archives import find_archive
from headrace.spark.lake.parquet_files import LakeError
from headrace.spark.object_store import S3Path
from headrace.spark.pipelines.base import ConfigError, Pipeline, Run
from headrace.spark.pipelines.stream_source import StreamsConfig, messages
from headrace.spark.places import place_of
from headrace.spark.sources.lake import ICEBERG_ON_S3

PARTITIONS = ("day", "shard")
OLD_PARTITIONS = ("stream", "day")  # of tables that earlier versions made; they keep them
SHARDS_MAX = 10_000  # each is a file of its own, every day


class Config(StreamsConfig, frozen=True, kw_only=True):
    table: str = "data/lake/messages"
    format: Literal["delta", "iceberg"] = "delta"
    value: Literal["string", "binary"] = "string"  # binary for streams that are not text
    shards: int = 8  # of each day; crc32(stream) modulo this is a message's shard
    time: str = ""  # a path such as $.at that holds a message's time; else the day it is archived
    merge_files_secs: int = 300  # 0 never merges

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(place_of("table", self.table), S3Path) and self.format == "iceberg":
            raise ValueError(f"table: {ICEBERG_ON_S3}")
        if not 1 <= self.shards <= SHARDS_MAX:
            raise ValueError(f"shards must be 1 to {SHARDS_MAX}, not {self.shards}.")


def start(spark: SparkSession, config: Config, run: Run) -> StreamingQuery:
    if config.starting == "earliest" and not run.has_begun:
        refuse_archived(config)
    merge_files(config)
    partitions = partitions_for(config)
    writer = (
        rows(messages(spark, config, config.value), config, partitions)
        .writeStream.format("headrace_lake")
        .option("path", config.table)
        .option("tableFormat", config.format)
        .option("partitionBy", ",".join(partitions))
    )
    query = run.start(writer, "archive")
    if config.merge_files_secs and not run.once:
        threading.Thread(target=_merge_while, args=(query, config), daemon=True).start()
    return query


def partitions_for(config: Config) -> tuple[str, ...]:
    """Those of new tables, or those of an earlier version if the table there has them."""
    found = find_archive(config.table)
    is_old = found is not None and found.partition_by() == OLD_PARTITIONS
    return OLD_PARTITIONS if is_old else PARTITIONS


def rows(read: DataFrame, config: Config, partitions: tuple[str, ...]) -> DataFrame:
    # The time of a batch is in its checkpoint: a batch that runs again has the same day.
    day = F.to_date(F.current_timestamp())
    if config.time:
        said = F.get_json_object(F.col("value").cast("string"), config.time)
        day = F.coalesce(F.to_date(F.try_to_timestamp(said)), day)
    shard = F.pmod(F.crc32(F.col("stream").cast("binary")), F.lit(config.shards)).cast("int")
    made = {"day": F.date_format(day, "yyyy-MM-dd"), "shard": shard}
    kept = [column.alias(name) for name, column in made.items() if name in partitions]
    return read.select("stream", *kept, "offset", "content_type", "value")


def refuse_archived(config: Config) -> None:
    """Without the state that went with the table, all that is in it would come again."""
    found = find_archive(config.table)
    try:
        names = found.streams(found.version()) if found else []
    except LakeError:  # there is no table yet, or none of archive's, which the sink refuses
        return
    held = [name for name in names if _is_chosen(name, config)]
    if held:
        raise ConfigError(
            f"The table {config.table} holds messages of the stream {held[0]} already, and this "
            "--state has none of its own. Use the state it was archived with, name another table, "
            'or set starting = "latest" to archive only what comes from now on.'
        )


def _is_chosen(name: str, config: Config) -> bool:
    if config.bucket:
        return name.startswith(f"/{config.bucket}/{config.prefix}")
    if config.pattern:
        return re.fullmatch(config.pattern, name) is not None
    return name in config.streams


def merge_files(config: Config) -> None:
    """Make one file of the small ones of each partition."""
    found = find_archive(config.table) if config.merge_files_secs else None
    if found is not None:
        found.merge_files()


def _merge_while(query: StreamingQuery, config: Config) -> None:
    while not _has_ended(query, config.merge_files_secs):
        merge_files(config)


def _has_ended(query: StreamingQuery, wait_secs: int) -> bool:
    try:
        return not query.isActive or bool(query.awaitTermination(wait_secs))
    except (PySparkException, Py4JError):  # the runner reports it
        return True


PIPELINE = Pipeline("archive", "messages of streams into a lake table", Config, start, True)

if __name__ == "__main__":
    from headrace.spark.pipelines.runner import main

    main(PIPELINE)
