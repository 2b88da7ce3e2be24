"""Options of pipelines that read streams, and the rows they get."""

from __future__ import annotations

import re

from pyspark.sql import DataFrame, SparkSession

from headrace.spark.pipelines.base import BYTES_PER_BATCH, PipelineConfig


class StreamsConfig(PipelineConfig, frozen=True, kw_only=True):
    """Which streams: by name, by pattern, or all of a bucket."""

    streams: tuple[str, ...] = ("session-events",)
    pattern: str = ""
    bucket: str = ""
    prefix: str = ""
    starting: str = "earliest"
    messages_per_batch: int = 100_000
    bytes_per_batch: int = BYTES_PER_BATCH
    fail_on_data_loss: bool = True  # off: begin a trimmed stream where it begins now

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.streams, self.pattern)


def check_names(streams: tuple[str, ...], pattern: str) -> None:
    for name in streams:
        if "," in name:
            raise ValueError(f"streams: {name!r} has a comma, so name it by pattern instead.")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"pattern: {pattern!r} is not a regular expression: {error}.") from None


def selection(config: StreamsConfig) -> dict[str, str]:
    """The options of the data source that choose streams."""
    chosen = {"url": config.server}
    if config.token:
        chosen["token"] = config.token
    if config.bucket:
        return chosen | {"bucket": config.bucket, "prefix": config.prefix}
    if config.pattern:
        return chosen | {"subscribePattern": config.pattern}
    return chosen | {"subscribe": ",".join(config.streams)}


def messages(
    spark: SparkSession, config: StreamsConfig, value: str = "string", **options: str
) -> DataFrame:
    """The messages of the streams, as they come; `value` is string or binary."""
    return (
        spark.readStream.format("headrace")
        .schema(f"stream string, value {value}, offset string, content_type string")
        .options(**selection(config), **options)
        .option("startingOffsets", config.starting)
        .option("maxMessagesPerTrigger", config.messages_per_batch)
        .option("maxBytesPerTrigger", config.bytes_per_batch)
        .option("failOnDataLoss", str(config.fail_on_data_loss).lower())
        .load()
    )
