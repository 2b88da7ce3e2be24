"""How long the sync takes: Postgres commit to SSE client, and append to Postgres row.

    python -m bench.sync_latency                      at rest, then under 1,000 changes/s
    python -m bench.sync_latency --secs 5 --rate 100  a short look
    python -m bench.sync_latency --report FILE        and as JSON

Brings up the stack's sync profile on free ports and sends one change in each direction every
`--every` seconds, first alone and then beside a load of `--rate` changes a second in each
direction. Of the time it says what each end takes with no Spark between: decoding (a slot of its
own), the commit of a row with its ledger (a table of its own), an append that is stored. What is
left is Spark's trigger; its steps come from the progress of the pipelines. Beside that stands the
CPU time of a trigger by process, which other work on the machine hardly changes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pyarrow as pa

from bench.machine import describe
from bench.probing import Probes, Steps
from bench.spending import each_ms, spent_seconds
from headrace.client import Client, Reader
from headrace.postgres.changes import ChangeFeed
from headrace.postgres.ledger import Claim, digest, prepare
from headrace.postgres.sink import SinkTarget, write
from headrace.postgres.slots import Slot
from headrace.spark.connection_cache import ReusedConnection
from headrace.spark.pipelines.progress import Progress, read_progress
from headrace.testing.stack_process import StackProcess
from headrace.testing.waiting import eventually

POLL_SECS = 0.002
PAUSE_SECS = 0.1
WARM_UP_CHANGES = 50
PIPELINES = ("postgres-to-stream", "stream-to-postgres")
SETTLE_SECS = 300.0
LOAD_BATCHES_PER_SEC = 20
OWN_TABLE = "bench_rows"


class Bench:
    def __init__(self, stack: StackProcess, every_secs: float) -> None:
        self._stack = stack
        self._every_secs = every_secs
        self._postgres = stack.address("postgres").replace("postgres@", "postgres:password@")
        self._client = Client(stack.address("envoy"), token=stack.token())
        self._events = self._client.stream("session-events")
        self._stop = threading.Event()

    def run(self, secs: float, rate: int) -> dict[str, Any]:
        to_stream, to_postgres, decoded = Probes(), Probes(), Probes()
        committed, appended = Probes(), Probes()
        steps: dict[str, Steps] = {name: Steps() for name in PIPELINES}
        work: list[Callable[[], None]] = [
            lambda: self._watch_stream(to_stream),
            lambda: self._watch_table(to_postgres),
            lambda: self._watch_feed(decoded),
            lambda: self._watch_triggers(steps),
            lambda: self._commit_rows(committed),
        ]
        if rate:
            work += [lambda: self._load_table(rate), lambda: self._load_stream(rate)]
        self._stop.clear()
        threads = [threading.Thread(target=each, daemon=True) for each in work]
        for thread in threads:
            thread.start()
        before, first = spent_seconds(self._stack), self._batches()
        self._probe(secs, to_stream, to_postgres, decoded, appended)
        after, last = spent_seconds(self._stack), self._batches()
        for probes, what in ((to_stream, "pg-items"), (to_postgres, "session_events")):
            eventually(lambda probes=probes: probes.is_complete, what, SETTLE_SECS)  # type: ignore[misc]
        self._stop.set()
        for thread in threads:
            thread.join(30)
        found: dict[str, Any] = {
            "Postgres commit to SSE client": to_stream.figures(),
            "append to Postgres row": to_postgres.figures(),
            "of which commit to decoded": decoded.figures(),
            "of which append to stored": appended.figures(),
            "of which row to committed": committed.figures(),
        }
        found |= {f"trigger of {name}": steps[name].figures() for name in PIPELINES}
        triggers = max(1, last - first)
        found["CPU of a trigger"] = {"triggers": triggers} | each_ms(before, after, triggers)
        return found

    def _batches(self) -> int:
        """How many there were so far, of both pipelines."""
        return sum(progress.batch for progress in self._progress().values())

    def _progress(self) -> dict[str, Progress]:
        home = self._stack.state.path / "pipelines"
        found = {name: read_progress(home / name) for name in PIPELINES}
        return {name: progress for name, progress in found.items() if progress is not None}

    def _probe(
        self,
        secs: float,
        to_stream: Probes,
        to_postgres: Probes,
        fed: Probes,
        appended: Probes,
    ) -> None:
        deadline = time.monotonic() + secs
        with psycopg.connect(self._postgres, autocommit=True) as connection:
            while time.monotonic() < deadline:
                name = f"probe-{uuid4()}"
                to_stream.sent[name] = fed.sent[name] = time.monotonic()
                connection.execute("insert into items (title) values (%s)", (name,))
                to_stream.sent[name] = fed.sent[name] = time.monotonic()
                to_postgres.sent[name] = time.monotonic()
                with appended.timed():
                    self._events.append_json({"key": name, "type": "probe", "operation": "set"})
                time.sleep(self._every_secs)

    # --- watching ---

    def _watch_stream(self, probes: Probes) -> None:
        reader = self._client.stream("pg-items").read("now", live="sse")
        threading.Thread(target=self._close_later, args=(reader,), daemon=True).start()
        for row in reader.json():
            probes.saw(row["title"])

    def _close_later(self, reader: Reader) -> None:
        self._stop.wait()
        reader.close()

    def _watch_table(self, probes: Probes) -> None:
        with psycopg.connect(self._postgres, autocommit=True) as connection:
            row = connection.execute("select coalesce(max(id), 0) from session_events").fetchone()
            last = row[0] if row else 0
            query = "select id, event_key from session_events where id > %s order by id"
            while not self._stop.is_set():
                for number, key in connection.execute(query, (last,)).fetchall():
                    last = number
                    probes.saw(key)
                time.sleep(POLL_SECS)

    def _watch_feed(self, probes: Probes) -> None:
        """A slot of our own: what decoding takes, with no Spark behind it."""
        slot = Slot(self._postgres, "bench", ["items"], snapshot=False)
        feed = ChangeFeed(slot)
        try:
            at = feed.begin()
            while not self._stop.is_set():
                batch = feed.next_batch(at, rows_max=10_000, bytes_max=1 << 24, wait_secs=0.5)
                at = batch.end
                for change in batch.changes:
                    probes.saw(json.loads(change.value or "{}").get("title", ""))
        finally:
            feed.close()
            slot.drop()

    def _watch_triggers(self, steps: dict[str, Steps]) -> None:
        while not self._stop.wait(0.5):
            for name, progress in self._progress().items():
                steps[name].by_batch[progress.batch] = progress.batch_steps_ms

    def _commit_rows(self, probes: Probes) -> None:
        """A table of our own, with the ledger: what a commit takes, with no Spark before it."""
        with psycopg.connect(self._postgres, autocommit=True) as connection:
            connection.execute(f"create table if not exists {OWN_TABLE} (title text)")
        prepare(self._postgres)
        rows = [pa.RecordBatch.from_pydict({"title": ["row"]})]
        target = SinkTarget(self._postgres, OWN_TABLE, ("title",), origin=OWN_TABLE)
        writer = str(uuid4())
        with closing(ReusedConnection()) as kept:
            for batch in count():
                claim = Claim(writer, writer, 0, batch, f"{writer}-{batch}", digest(rows))
                with probes.timed():
                    write(target, claim, rows, connect=kept.connection)
                if self._stop.wait(self._every_secs):
                    return

    # --- load ---

    def _load_table(self, rate: int) -> None:
        each = max(1, rate // LOAD_BATCHES_PER_SEC)
        query = "insert into items (title) select 'load' from generate_series(1, %s)"
        with psycopg.connect(self._postgres, autocommit=True) as connection:
            while not self._stop.wait(1 / LOAD_BATCHES_PER_SEC):
                connection.execute(query, (each,))

    def _load_stream(self, rate: int) -> None:
        each = max(1, rate // LOAD_BATCHES_PER_SEC)
        events = [{"key": "load", "type": "load", "operation": "set"}] * each
        while not self._stop.wait(1 / LOAD_BATCHES_PER_SEC):
            self._events.append_json(*events)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--secs", type=float, default=30, help="length of each measurement")
    parser.add_argument("--rate", type=int, default=1000, help="changes a second of the load")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two probes")
    parser.add_argument("--report", type=Path, help="write the figures here as JSON")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    home.chmod(0o755)  # as root, Postgres runs as another account
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": describe(["python -m bench.sync_latency", *sys.argv[1:]]),
    }
    try:
        with StackProcess(home / "state", "sync") as stack:
            bench = Bench(stack, given.every)
            _warm_up(stack)
            for title, rate in (("at rest", 0), (f"beside {given.rate} changes/s", given.rate)):
                report[title] = bench.run(given.secs, rate)
                _print(title, report[title])
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if given.report is not None:
        given.report.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


def _print(title: str, found: dict[str, Any]) -> None:
    print(f"\n{title}")
    for name, figures in found.items():
        print(f"  {name}: " + ", ".join(f"{key} {value}" for key, value in figures.items()))


def _warm_up(stack: StackProcess) -> None:
    """Spark's first batches compile and load; they are not what is measured."""
    postgres = stack.address("postgres").replace("postgres@", "postgres:password@")
    streams = f"{stack.address('server')}/v1/stream"
    with psycopg.connect(postgres, autocommit=True) as connection:
        for _ in range(WARM_UP_CHANGES):
            connection.execute("insert into items (title) values ('warm')")
            httpx.post(f"{streams}/session-events", json=[{"key": "warm"}]).raise_for_status()
            time.sleep(PAUSE_SECS)
        query = "select count(*) from session_events"

        def rows() -> int:
            row = connection.execute(query).fetchone()
            return row[0] if row else 0

        eventually(lambda: rows() == WARM_UP_CHANGES, "the first rows", SETTLE_SECS)
    eventually(lambda: _count(f"{streams}/pg-items") == WARM_UP_CHANGES, "messages", SETTLE_SECS)


def _count(stream: str) -> int:
    answer = httpx.head(stream)
    return int(answer.headers["stream-next-offset"].split("_")[0]) if answer.is_success else 0


if __name__ == "__main__":
    main()
