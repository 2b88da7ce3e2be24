"""The session of Postgres that a reused worker of Spark keeps from one task to the next."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import psycopg

from headrace.spark.runtime.workers import is_reused

_IDLE_SECS_MAX: Final = 60.0  # firewalls drop idle connections; Spark ends idle workers at this age


class ReusedConnection:
    """A session of Postgres that outlives a task. One, so that a worker never holds many."""

    def __init__(self) -> None:
        self._idle: tuple[str, psycopg.Connection, float] | None = None

    @contextmanager
    def connection(self, url: str) -> Iterator[psycopg.Connection]:
        """Committed and kept at the end; closed if an error passes.

        A user leaves the session as it was.
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


_kept = ReusedConnection()


def postgres_connection(url: str) -> AbstractContextManager[psycopg.Connection]:
    """A connection for one task, which the next task of the same worker finds open."""
    return _kept.connection(url) if is_reused() else psycopg.connect(url)
