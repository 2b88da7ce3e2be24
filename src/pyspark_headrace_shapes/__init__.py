"""The data source `headrace_shapes`. Spark looks for modules named `pyspark_*`."""

from headrace.spark.sources.shapes import ShapesSource as DefaultSource

__all__ = ["DefaultSource"]
