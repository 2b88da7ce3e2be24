"""Python workers of Spark that are reused, and what that asks of a task.

Spark runs several of them for every batch, however small, and has each collect its garbage after
every task: a look at every object of every loaded module takes longer than the rows.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

_REUSED: Final = "SPARK_REUSE_WORKER"  # Spark's own mark, in the environment of its workers
_SETTLING_TASKS: Final = 4  # a worker reads in one task and writes in the next, and loads for each

_AWAKE_SECS: Final = 40.0  # Spark ends all workers of an executor when none had a task for 60

_settled = 0


def is_reused() -> bool:
    """Whether this process is a worker that more tasks will come to."""
    return _REUSED in os.environ


def settle() -> None:
    """Take what is loaded out of the collector's sight: it stays for good. For each task to call.

    With our modules a collection takes 40 ms of a core before this, and nothing after it.
    """
    global _settled
    if _settled < _SETTLING_TASKS and is_reused():
        _settled += 1
        gc.freeze()


@contextmanager
def kept_awake(session: SparkSession, every_secs: float = _AWAKE_SECS) -> Iterator[None]:
    """While this lasts, workers do not end for want of work: it takes seconds to load new ones.

    Where Spark gives back executors that have nothing to do, it is left to.
    """
    if session.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        yield
        return
    ended = threading.Event()
    work = (session, every_secs, ended)
    threading.Thread(target=_keep_awake, args=work, name="awake", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _keep_awake(session: SparkSession, every_secs: float, ended: threading.Event) -> None:
    while not ended.wait(every_secs):
        # In a session that is about to end it fails, and nobody needs it.
        with suppress(Exception):
            awaken(session)


def awaken(session: SparkSession) -> set[int]:
    """Give every core a task, in the processes that data sources run in; which those are."""
    tasks = session.sparkContext.defaultParallelism
    found = session.range(0, tasks, 1, tasks).mapInArrow(_pid, "pid long").collect()
    return {row.pid for row in found}


def _pid(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()] * batch.num_rows})
