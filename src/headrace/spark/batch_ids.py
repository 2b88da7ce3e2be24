"""The query and batch that a task is writing: Spark's own names for it, in one place.

The property names are internals of Spark; `tests/spark/test_source.py` guards them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import TaskContext
from pyspark.sql import SparkSession

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class BatchOfTask:
    """The query (its checkpoint's id), the batch, and this task's partition of it."""

    query: str
    batch: int
    partition: int


def current_query(session: SparkSession) -> str:
    """The query whose batch the driver is handling, inside foreachBatch."""
    query: str | None = session.sparkContext.getLocalProperty(_QUERY_ID)
    if query is None:
        raise RuntimeError(f"Spark did not say which query this is: it has no {_QUERY_ID}.")
    return query


def current_batch() -> BatchOfTask:
    """Of the task this runs in; only tasks of a streaming query have one."""
    task = TaskContext.get()
    assert task is not None, "not in a Spark task"
    query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        raise RuntimeError(
            "Spark did not say which batch this is: exactly-once writing needs its local "
            f"properties {_QUERY_ID} and {_BATCH_ID}."
        )
    return BatchOfTask(query, int(batch), task.partitionId())
