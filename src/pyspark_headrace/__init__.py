"""The data source `headrace`. Spark looks for modules named `pyspark_*`."""

from headrace.spark.sources.streams import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]
