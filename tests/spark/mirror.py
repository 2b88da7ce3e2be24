"""A mirror under load and kills: random changes and DDL in a database, its streams, and a second
database that must be equal to it in the end.

    python -m tests.spark.mirror [--minutes 10] [--seed N]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from headrace.errors import StreamNotFound
from headrace.postgres.slot_names import SlotError
from headrace.postgres.slots import Slot
from headrace.testing.waiting import eventually
from tests.spark import mirrored
from tests.spark.cluster import Cluster
from tests.spark.kills import KINDS, Campaign
from tests.spark.mirror_driver import SLOT, TABLES, applied

_DEADLINE_SECS = 300.0
_LOOK_SECS = 0.5
_PAUSE_SECS = 0.05
_TARGET = "mirrored"
_ALTERED_EACH = 100  # transactions
_KILLS_MAX = 1000  # of each part: time ends it


class Mirror(Campaign):
    """A server, two databases, a driver on a cluster, and load on the first database."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        super().__init__(cluster, seed)
        self.changer = mirrored.Changer(random.Random(seed))

    @property
    def target(self) -> str:
        return self.postgres.url_of(_TARGET)

    def _prepare(self) -> None:
        with psycopg.connect(self.postgres.url, autocommit=True) as admin:
            admin.execute(f"create database {_TARGET}".encode())
        mirrored.create(self.postgres.url)
        mirrored.create(self.target)

    def _loads(self) -> Sequence[Callable[[], None]]:
        return (self._change,)

    def _command(self) -> list[str]:
        command = ["tests.spark.mirror_driver", self._cluster.url, str(self._state)]
        return [*command, self.server.url, self.postgres.url, self.target]

    def _change(self) -> None:
        while not self._stop.is_set():
            with (
                suppress(psycopg.OperationalError),
                psycopg.connect(self.postgres.url, autocommit=True) as connection,
            ):
                while not self._stop.wait(_PAUSE_SECS):
                    self.changer.transaction(connection)
                    if self._is_time_to_alter():
                        self._alter(connection)

    def _is_time_to_alter(self) -> bool:
        changer = self.changer
        due = changer.transactions // _ALTERED_EACH > len(changer.altered)
        return due and len(changer.altered) < len(TABLES)

    def _alter(self, connection: psycopg.Connection) -> None:
        table = self.changer.alter(connection)
        slot = Slot(self.postgres.url, SLOT, TABLES)
        eventually(lambda: _is_requested(slot, table.name), "a request to copy a table", 60)

    def _arrived(self) -> tuple[int, ...]:
        """How many batches both ways have been written."""
        [(is_there,)] = self._query(self.target, "select to_regclass('headrace.ledger')")
        batches = "select coalesce(max(batch), 0) from headrace.ledger"
        return (self._query(self.target, batches)[0][0] if is_there else 0,)

    def _await_arrivals(self, more: int) -> None:
        super()._await_arrivals(1 + more // 50)

    def finish_equal(self, kinds: Iterable[str], secs: float = math.inf) -> list[str]:
        """Make these kills, stop the load, and say where the databases differ after all."""
        order = list(kinds)
        self.random.shuffle(order)
        deadline = time.monotonic() + secs
        for kind in order:
            if time.monotonic() > deadline:
                break
            self.kill(kind)
        while not math.isinf(secs) and time.monotonic() < deadline:
            self._await_arrivals(50)
        self._stop.set()
        for thread in self._threads:
            thread.join()
        with suppress(AssertionError):  # then the differences say so
            eventually(self._is_equal, "equal databases", _DEADLINE_SECS, _LOOK_SECS)
        return [*self._differences(), *self._quarantined()]

    def _is_equal(self) -> bool:
        self._check_driver()
        return not self._differences()

    def _differences(self) -> list[str]:
        return list(mirrored.differences(self.postgres.url, self.target))

    def _quarantined(self) -> list[str]:
        with self._client() as client:
            stream = client.stream(applied("http://localhost", self.target).quarantine)
            try:
                return [str(record) for record in stream.read_json()]
            except StreamNotFound:
                return []

    def _query(self, url: str, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(url) as connection:
            return connection.execute(query.encode()).fetchall()


def campaign(cluster: Cluster, seed: int, minutes: float) -> dict[str, Any]:
    """Kills of every part for so long, and what came of it."""
    with Mirror(cluster, seed) as mirror:
        differences = mirror.finish_equal(_KILLS_MAX * KINDS, 60 * minutes)
        return {
            "minutes": minutes,
            "kills": dict(mirror.killed),
            "driver ended by itself and was started again": mirror.restarts,
            "transactions": mirror.changer.transactions,
            "tables altered": len(mirror.changer.altered),
            "rows": mirrored.rows(mirror.target),
            "differences": differences,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(2))  # and leave nothing running
    with tempfile.TemporaryDirectory() as home, Cluster(Path(home)) as cluster:
        found = campaign(cluster, given.seed, given.minutes)
    print(json.dumps({"seed": given.seed, **found}, indent=2))
    sys.exit(1 if found["differences"] else 0)


def _is_requested(slot: Slot, table: str) -> bool:
    with suppress(psycopg.OperationalError, psycopg.errors.UndefinedTable, SlotError):
        slot.request_copy(table)  # there may be no slot yet
        return True
    return False


if __name__ == "__main__":
    main()
