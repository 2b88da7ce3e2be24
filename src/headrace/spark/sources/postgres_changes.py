"""The data source `headrace_postgres_changes`: a streaming read of tables by logical replication.

Planning and reading are `headrace.postgres.changes`; here is only what Spark asks for and when.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.postgres.changes import Batch, ChangeFeed
from headrace.postgres.copies import ON_PARTITIONS, OnPartitions
from headrace.postgres.origins import ORIGINS, Origin
from headrace.postgres.pgoutput import lsn_text
from headrace.postgres.positions import FeedPosition
from headrace.postgres.slots import Slot
from headrace.spark.options import Options
from headrace.spark.sources.change_rows import SCHEMA, ChangePartition, partitions

NAME = "headrace_postgres_changes"
ROW_BYTES_MAX = 64 * 1024 * 1024  # Spark's usual heap of 1 GiB holds several copies of it
OPTIONS = frozenset(
    {
        "url", "slot", "tables", "snapshot", "origin", "onLostSlot", "maxChangesPerTrigger",
        "maxBytesPerTrigger", "pollMs", "retrySecs", "consumer", "onPartitions", "withoutKey",
        "onReset", "maxRowBytes", "snapshotColumns",
    }
)  # fmt: skip

_REPORT_SECS: Final = 5.0


class PostgresChanges(DataSource):
    """Inserts, updates, deletes, truncates and schema changes of tables, from their snapshot on."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return ChangesReader(Options(NAME, self.options, OPTIONS))


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options) -> None:
        self._url = options.required("url", "postgresql://user:password@localhost/database")
        self._slot_name = options.text("slot")
        self._tables = options.names("tables")
        self._snapshot = options.choice("snapshot", ("initial", "never")) == "initial"
        self._origin: Origin = options.choice("origin", ORIGINS)
        self._recover = options.choice("onLostSlot", ("snapshot", "fail")) == "snapshot"
        self._rows_max = options.number("maxChangesPerTrigger", 50_000)
        self._bytes_max = options.number("maxBytesPerTrigger", 64 * 1024 * 1024)
        self._poll_secs = options.number("pollMs", 5_000, least=0) / 1000
        self._retry_secs = options.number("retrySecs", 60, least=0)
        self._consumer = options.text("consumer")
        self._on_partitions: OnPartitions = options.choice("onPartitions", ON_PARTITIONS)
        self._needs_key = options.choice("withoutKey", ("allow", "refuse")) == "refuse"
        self._may_reset = options.choice("onReset", ("report", "fail")) == "report"
        self._row_bytes_max = options.number("maxRowBytes", ROW_BYTES_MAX)
        self._with_columns = options.flag("snapshotColumns", False)
        self._until: int | None = None
        self._planned: Batch | None = None
        self._opened: ChangeFeed | None = None
        self._report_again_at = 0.0
        self._reported: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get the reader, too, but never its connection or what it has read."""
        return self.__dict__ | {"_opened": None, "_planned": None}

    @property
    def _feed(self) -> ChangeFeed:
        if self._opened is None:
            slot = Slot(
                self._url,
                self._slot_name,
                self._tables,
                snapshot=self._snapshot,
                consumer=self._consumer,
                needs_key=self._needs_key,
                with_columns=self._with_columns,
            )
            self._opened = ChangeFeed(
                slot,
                origin=self._origin,
                recover_lost_slot=self._recover,
                retry_secs=self._retry_secs,
                on_partitions=self._on_partitions,
                may_reset=self._may_reset,
                row_bytes_max=self._row_bytes_max,
            )
        return self._opened

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._feed.begin().offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = self._feed.newest_lsn()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else self._rows_max
        self._planned = self._feed.next_batch(
            FeedPosition.of(start),
            rows_max=rows_max,
            bytes_max=self._bytes_max,
            wait_secs=self._poll_secs,
            until=self._until,
        )
        return self._planned.end.offset()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The end of Postgres's log, for a query's progress: how far behind a batch ended.

        Asked for at every trigger, so the last answer serves for a while.
        """
        now = time.monotonic()
        if now >= self._report_again_at:
            self._report_again_at = now + _REPORT_SECS
            try:
                self._reported = {"lsn": lsn_text(self._feed.newest_lsn())}
            except psycopg.Error:  # the next batch is what retries, and says so
                self._reported = None
        return self._reported

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = FeedPosition.of(start), FeedPosition.of(end)
        planned = self._planned
        if planned is not None and (planned.start, planned.end) == (first, last):
            return partitions(planned.changes)
        return partitions(self._feed.reread(first, last))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ChangePartition)
        return partition.batches()

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the slot moves when the next batch is planned, which is when Spark has
        recorded that this one is done."""

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
