"""Keeping the Python workers of a session from ending in a pause.

Spark ends all workers of an executor when none of them had a task for a minute, and it takes
seconds to load new ones.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

_EVERY_SECS: Final = 40.0


@contextmanager
def kept_alive(session: SparkSession, every_secs: float = _EVERY_SECS) -> Iterator[None]:
    """While this lasts, workers do not end for want of work.

    Where Spark gives back executors that have nothing to do, it is left to.
    """
    if session.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        yield
        return
    ended = threading.Event()
    work = (session, every_secs, ended)
    threading.Thread(target=_run, args=work, name="keepalive", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _run(session: SparkSession, every_secs: float, ended: threading.Event) -> None:
    while not ended.wait(every_secs):
        # It fails in a session that is ending, and is not needed there.
        with suppress(Exception):
            keep_alive(session)


def keep_alive(session: SparkSession) -> set[int]:
    """Give every core a task, in the processes that data sources run in; which those are."""
    tasks = session.sparkContext.defaultParallelism
    found = session.range(0, tasks, 1, tasks).mapInArrow(_pid, "pid long").collect()
    return {row.pid for row in found}


def _pid(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()] * batch.num_rows})
