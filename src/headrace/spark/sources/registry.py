"""Every data source of this package, to be registered."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

from headrace.spark.sources.apply_changes import ApplyChanges
from headrace.spark.sources.lake import LakeSink
from headrace.spark.sources.postgres_changes import PostgresChanges
from headrace.spark.sources.postgres_sink import PostgresSink
from headrace.spark.sources.shapes import ShapesSource
from headrace.spark.sources.streams import HeadraceSource

SOURCES: tuple[type[DataSource], ...] = (
    ApplyChanges,
    HeadraceSource,
    LakeSink,
    PostgresChanges,
    PostgresSink,
    ShapesSource,
)
