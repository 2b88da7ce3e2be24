"""The data source `headrace_postgres_changes`. Spark looks for modules named `pyspark_*`."""

from headrace.spark.sources.postgres_changes import PostgresChanges as DefaultSource

__all__ = ["DefaultSource"]
