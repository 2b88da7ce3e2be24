"""`headrace`: streams as a Spark data source, batch and streaming, both ways."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headrace.spark.options import OptionError
from headrace.spark.quarantine_count import QuarantineCount
from headrace.spark.runtime.workers import freeze_modules
from headrace.spark.streams.columns import DEFAULT_SCHEMA
from headrace.spark.streams.stream_options import read_options, write_options
from headrace.spark.streams.stream_reader import BatchReader, StreamReader
from headrace.spark.streams.stream_writer import BatchWriter, StreamWriter


class HeadraceSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        return DEFAULT_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise OptionError("Streams only grow: write with mode append.")
        return BatchWriter(write_options(self.options), schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        if overwrite:
            raise OptionError("Streams only grow: write with output mode append.")
        options = write_options(self.options, is_query=True)
        freeze_modules()
        # Spark passes it on among the options; it is read before they are checked.
        given = {name.lower(): value for name, value in self.options.items()}
        count = QuarantineCount.of(given.get("checkpointlocation", ""))
        return StreamWriter(options, schema, count)
