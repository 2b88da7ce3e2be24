"""The data source `headrace_shapes`: the changes of one table from an Electric Shape API.

The same rows as `headrace_postgres_changes` gives; reading is `headrace.spark.shape_feed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.postgres.change_table import ChangeTable
from headrace.spark.options import Options
from headrace.spark.shape_feed import ShapeBatch, ShapeFeed, ShapePosition
from headrace.spark.sources.change_rows import SCHEMA, ChangePartition, partitions

NAME = "headrace_shapes"
_SHAPE = ("table", "where", "columns", "replica", "secret")
OPTIONS = frozenset(
    {"url", *_SHAPE, "maxChangesPerTrigger", "maxBytesPerTrigger", "retrySecs", "onReset"}
)


class ShapesSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return ShapeReader(Options(NAME, self.options, OPTIONS))


class ShapeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options) -> None:
        self._url = options.required("url", "http://localhost:3000")
        options.required("table", "items")
        self._params = {name: options.text(name) for name in _SHAPE if options.text(name)}
        self._rows_max = options.number("maxChangesPerTrigger", 50_000)
        self._bytes_max = options.number("maxBytesPerTrigger", 64 * 1024 * 1024)
        self._retry_secs = options.number("retrySecs", 60, least=0)
        self._may_reset = options.choice("onReset", ("report", "fail")) == "report"
        self._only_now = False
        self._is_done = False
        self._planned: ShapeBatch | None = None
        self._opened: ShapeFeed | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None, "_planned": None}

    @property
    def _feed(self) -> ShapeFeed:
        if self._opened is None:
            self._opened = ShapeFeed(
                self._url, self._params, retry_secs=self._retry_secs, may_reset=self._may_reset
            )
        return self._opened

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return ShapePosition().as_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._only_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if self._is_done:
            return start
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else self._rows_max
        self._planned = self._feed.next_batch(
            ShapePosition.of(start),
            rows_max=rows_max,
            bytes_max=self._bytes_max,
            live=not self._only_now,
        )
        # A run that ends with what is there now ends at the first tail it meets.
        self._is_done = self._only_now and self._planned.end == self._feed.tail
        return self._planned.end.as_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = ShapePosition.of(start), ShapePosition.of(end)
        planned = self._planned
        if planned is not None and (planned.start, planned.end) == (first, last):
            return partitions(ChangeTable.of(planned.changes))
        return partitions(ChangeTable.of(self._feed.reread(first, last)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ChangePartition)
        return partition.batches()

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the server keeps the log for everyone."""

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
