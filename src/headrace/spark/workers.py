"""What a Python worker of Spark keeps from one task to the next.

Spark reuses its workers and runs several for every batch, however small. What each would do anew
then takes longer than the rows: opening a connection to Postgres, and the garbage collector's look
at every object of every loaded module, which Spark asks for after each task.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import psycopg

_REUSED: Final = "SPARK_REUSE_WORKER"  # Spark's own mark, in the environment of its workers
_SETTLING_TASKS: Final = 4  # a worker reads in one task and writes in the next, and loads for each
_IDLE_SECS_MAX: Final = 60.0  # firewalls forget connections; Spark ends idle workers by then

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


class KeptConnection:
    """A session of Postgres that outlives a task. One, so that a worker never holds many."""

    def __init__(self) -> None:
        self._idle: tuple[str, psycopg.Connection, float] | None = None

    @contextmanager
    def connection(self, url: str) -> Iterator[psycopg.Connection]:
        """Committed and kept at the end; closed if an error passes.

        Whoever uses it leaves the session as it was.
        """
        connection = self._take(url)
        try:
            yield connection
            connection.commit()
        except BaseException:
            connection.close()
            raise
        self.close()
        self._idle = url, connection, time.monotonic()

    def _take(self, url: str) -> psycopg.Connection:
        if self._idle is not None:
            of, connection, since = self._idle
            if of == url and time.monotonic() - since < _IDLE_SECS_MAX:
                self._idle = None
                return connection
        # Statements are not prepared behind our back: a pooler in between may not know them.
        return psycopg.connect(url, prepare_threshold=None)

    def close(self) -> None:
        if self._idle is not None:
            _, connection, _ = self._idle
            self._idle = None
            connection.close()


_kept = KeptConnection()


def postgres_connection(url: str) -> AbstractContextManager[psycopg.Connection]:
    """A connection for one task, which the next task of the same worker finds open."""
    return _kept.connection(url) if is_reused() else psycopg.connect(url)
