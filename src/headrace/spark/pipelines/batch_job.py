"""Pipelines that are jobs, not queries: they run to an end, once or again and again.

A job looks to the runner like a streaming query: it can be waited for, stopped and asked how far
it is.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from pyspark.sql.streaming.query import StreamingQuery

REPORTS_KEPT = 20


class Job:
    """Runs `work` in a thread of its own; with a pause, again after it until it is stopped.

    `work` is given the job, and returns how many rows it handled. It looks at `stopping` where it
    can end early without harm.
    """

    def __init__(self, work: Callable[[Job], int], pause_secs: float | None = None) -> None:
        self.stopping = threading.Event()
        self._work = work
        self._pause_secs = pause_secs
        self._reports: deque[dict[str, Any]] = deque(maxlen=REPORTS_KEPT)
        self._error: BaseException | None = None
        self._is_working = True
        self._thread = threading.Thread(target=self._run, name="job", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            number = 0
            while not self.stopping.is_set():
                self._is_working = True
                self._report(number)
                number += 1
                if self._pause_secs is None:
                    return
                self._is_working = False
                self.stopping.wait(self._pause_secs)
        except BaseException as error:
            self._error = error
        finally:
            self._is_working = False

    def _report(self, number: int) -> None:
        began = time.monotonic()
        rows = self._work(self)
        secs = max(time.monotonic() - began, 0.001)
        report = {
            "batchId": number,
            "numInputRows": rows,
            "processedRowsPerSecond": rows / secs,
            "durationMs": {"triggerExecution": int(secs * 1000)},
        }
        self._reports.append(report)

    # -- as a streaming query -------------------------------------------------------------------

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._thread.is_alive()

    @property
    def status(self) -> dict[str, Any]:
        return {"isDataAvailable": self._is_working}

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802
        return list(self._reports)

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def stop(self) -> None:
        self.stopping.set()


def started(job: Job) -> StreamingQuery:
    """The job as what pipelines return."""
    return cast(StreamingQuery, job)
