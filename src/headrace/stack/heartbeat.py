"""The heartbeat: exercises both directions of the sync, so that there is something to watch.

Odd ticks insert a row into `items`, which should appear in the stream `pg-items`; even ticks append
an event to the stream `session-events`, which should appear in the table `session_events`.
"""

from __future__ import annotations

import logging
import threading
import time

import psycopg

from headrace.client import Client, ProducerStamp
from headrace.errors import HeadraceError

EVERY_SECS = 5.0
STREAM = "session-events"
logger = logging.getLogger(__name__)


class Heartbeat:
    def __init__(self, postgres_url: str, server_url: str) -> None:
        self._postgres_url = postgres_url
        self._client = Client(server_url)
        self._stream = self._client.stream(STREAM)
        # A name of its own for each run: the sequence starts at 0.
        self._producer = f"heartbeat-{time.time_ns()}"
        self._sent = 0
        self._created = False

    def tick(self, number: int) -> None:
        if number % 2:
            self._insert(number)
        else:
            self._append(number)

    def _insert(self, number: int) -> None:
        with psycopg.connect(self._postgres_url, connect_timeout=5) as connection:
            connection.execute(
                "insert into items (title, body) values (%s, %s)",
                (f"heartbeat {number}", "inserted into Postgres"),
            )

    def _append(self, number: int) -> None:
        if not self._created:
            self._stream.create("application/json")
            self._created = True
        event = {
            "key": f"heartbeat:{number}",
            "type": "heartbeat",
            "operation": "set",
            "value": {"tick": number},
        }
        stamp = ProducerStamp(self._producer, 0, self._sent)
        self._stream.append_json(event, producer=stamp)
        self._sent += 1

    def run(self, stop: threading.Event, every_secs: float = EVERY_SECS) -> None:
        """Tick until `stop` is set. If a service is unreachable, only its ticks are missing."""
        number = 0
        while not stop.is_set():
            number += 1
            try:
                self.tick(number)
            except (psycopg.Error, HeadraceError) as error:
                logger.warning("tick %d failed: %s", number, str(error).strip() or repr(error))
            else:
                logger.info("tick %d: %s", number, "items" if number % 2 else STREAM)
            stop.wait(every_secs)
        self._client.close()
