"""Runs the steps of a pipeline on one message, without a server: `python -m … JAVA_OPTIONS`.

Java loads the classes that a pipeline needs, and writes them to the CDS archive when it exits.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from headrace.spark.pipelines import sessions, stream_to_postgres
from headrace.spark.pipelines.base import Run
from headrace.spark.session import build_session
from headrace.spark.streams.columns import DEFAULT_SCHEMA, arrow_schema

_NAME = "headrace_cds_training"
_MESSAGE = b'{"key": "k", "value": {"at": "2026-11-16T10:00:00Z", "user": "u", "role": "user"}}'
_DEADLINE_SECS = 300


class TrainingSource(DataSource):
    """A stream of one message, and a sink that discards its rows."""

    @classmethod
    def name(cls) -> str:
        return _NAME

    def schema(self) -> str:
        return DEFAULT_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _Reader(schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return _Writer()


class _Reader(DataSourceStreamReader):
    def __init__(self, schema: StructType) -> None:
        self._schema = arrow_schema(schema)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"messages": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"messages": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        row = {"stream": "s", "value": _MESSAGE, "offset": "", "content_type": "application/json"}
        yield pa.RecordBatch.from_pylist([row], self._schema)


class _Writer(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def train(spark: SparkSession, home: Path) -> None:
    spark.dataSource.register(TrainingSource)
    messages = spark.readStream.format(_NAME).load()
    rows = stream_to_postgres.rows(messages, stream_to_postgres.Config())
    texts = messages.withColumn("value", messages.value.cast("string"))
    minutes = sessions.by_minute(sessions.events(texts), sessions.Config())
    for name, writer in (
        ("rows", rows.writeStream.format(_NAME)),
        ("minutes", minutes.writeStream.outputMode("update").foreachBatch(_collect)),
    ):
        query = Run(True, home / name).start(writer, name)
        assert query.awaitTermination(_DEADLINE_SECS), f"the training run of {name} has not ended"


def _collect(frame: DataFrame, batch: int) -> None:
    frame.collect()


def main(java_options: str) -> None:
    conf = {"spark.driver.extraJavaOptions": java_options}
    spark = build_session("headrace-cds-training", master="local[1]", conf=conf)
    with tempfile.TemporaryDirectory() as home:
        train(spark, Path(home))
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_DEADLINE_SECS)


if __name__ == "__main__":
    main(sys.argv[1])
