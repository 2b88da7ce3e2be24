"""The data source `headrace_shapes`. Spark looks for modules named `pyspark_*`."""

from headrace.spark.sources.shapes import Shapes as DefaultSource

__all__ = ["DefaultSource"]
