"""What a change costs where `postgres-to-stream` plans its batches: CPU µs by part.

    python -m bench.change_costs                  200,000 inserts in one transaction, 3 rounds
    python -m bench.change_costs --each 1         a transaction for each
    python -m bench.change_costs --report FILE    and as JSON

A table with a slot gets the rows, which are then read three times over: received only, planned as
batches (received, decoded and collected), and packed into a partition. The time is that of this
process, which other work on the machine changes little. To compare with another version, put its
`src` first on PYTHONPATH, name it in `--sources`, and alternate.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from bench.machine import describe
from headrace.postgres.changes import ChangeFeed
from headrace.postgres.replication import open_replication
from headrace.postgres.server import PostgresServer
from headrace.postgres.slots import Slot
from headrace.spark.sources.change_rows import partitions

TABLE = "create table items (id serial primary key, title text, at timestamptz default now())"
INSERT = "insert into items (title) select 'the title of ' || n from generate_series(1, %s) n"
BATCH_ROWS = 50_000
BATCH_BYTES = 64 * 1024 * 1024


class Costs:
    """Of one table and its slot, whose consumer goes on from round to round."""

    def __init__(self, url: str, rows: int, each: int) -> None:
        self._url = url
        self._rows = rows
        self._each = each
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(TABLE)
        self._slot = Slot(url, "costs", ["items"], snapshot=False)
        self._feed = ChangeFeed(self._slot)
        self._at = self._feed.begin()

    def round(self) -> dict[str, float]:
        self._insert()
        received = self._of_each(self._receive)
        self.packing = 0.0
        planned = self._of_each(self._plan)
        packed = self.packing / self._rows * 1e6
        return {
            "received": received,
            "decoded and collected": planned - packed - received,
            "packed": packed,
        }

    def close(self) -> None:
        self._feed.close()

    def _of_each(self, work: Callable[[], None]) -> float:
        before = time.process_time()
        work()
        return (time.process_time() - before) / self._rows * 1e6

    def _insert(self) -> None:
        with psycopg.connect(self._url) as connection:
            for _ in range(self._rows // self._each):
                connection.execute(INSERT, (self._each,))
                connection.commit()

    def _receive(self) -> None:
        self._feed.close()
        with open_replication(self._url, "costs", "costs", self._at.lsn, origin="any") as reader:
            left = self._rows
            while left:
                message = reader.receive(30)
                assert message is not None, "a change has not come"
                left -= message[0] == ord("I")

    def _plan(self) -> None:
        left = self._rows
        while left:
            batch = self._feed.next_batch(
                self._at, rows_max=BATCH_ROWS, bytes_max=BATCH_BYTES, wait_secs=30
            )
            before = time.process_time()
            partitions(batch.changes)
            self.packing += time.process_time() - before
            self._at = batch.end
            left -= len(batch.changes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--each", type=int, default=0, help="rows of a transaction; all in one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sources", default="these", help="which version it is, for the report")
    parser.add_argument("--report", type=Path, help="write the figures here as JSON")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    home.chmod(0o755)  # as root, Postgres runs as another account
    try:
        with PostgresServer(home / "postgres") as postgres:
            costs = Costs(postgres.url, given.rows, given.each or given.rows)
            costs.round()  # the first loads modules and makes the catalog's entries
            rounds = [costs.round() for _ in range(given.rounds)]
            costs.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": describe(["python -m bench.change_costs", *sys.argv[1:]]),
        "sources": given.sources,
        "cpu_us_per_change": {
            part: {
                "median": round(median(each[part] for each in rounds), 2),
                "rounds": [round(each[part], 2) for each in rounds],
            }
            for part in rounds[0]
        },
    }
    for part, figures in report["cpu_us_per_change"].items():
        print(f"{part}: {figures['median']} µs of {figures['rounds']}")
    if given.report is not None:
        given.report.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
