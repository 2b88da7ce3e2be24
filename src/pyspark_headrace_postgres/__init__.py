"""The data source `headrace_postgres`. Spark looks for modules named `pyspark_*`."""

from headrace.spark.sources.postgres_sink import PostgresSink as DefaultSource

__all__ = ["DefaultSource"]
