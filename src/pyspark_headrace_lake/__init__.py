"""The data source `headrace_lake`. Spark looks for modules named `pyspark_*`."""

from headrace.spark.sources.lake import LakeSink as DefaultSource

__all__ = ["DefaultSource"]
