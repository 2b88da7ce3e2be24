"""How long the sync takes: Postgres commit to SSE client, and append to Postgres row.

    python -m bench.sync_latency                      at rest, then under 1,000 changes/s
    python -m bench.sync_latency --secs 5 --rate 100  a short look

Brings up the stack's sync profile on free ports, measures both directions with one change every
100 ms, first alone and then beside a load of `--rate` changes a second in each direction, and says
what decoding and a trigger of Spark take of it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import httpx
import psycopg

from headrace.client import Client, Reader
from headrace.postgres.changes import ChangeFeed
from headrace.postgres.slots import Slot
from headrace.testing.stack import StackProcess
from headrace.testing.waiting import eventually

PROBE_EVERY_SECS = 0.1
POLL_SECS = 0.002
SETTLE_SECS = 300.0
LOAD_BATCHES_PER_SEC = 20


@dataclass
class Probes:
    """When each probe was sent and when it was seen, by its name."""

    sent: dict[str, float] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)

    def saw(self, name: str) -> None:
        if name in self.sent and name not in self.seen:
            self.seen[name] = time.monotonic()

    @property
    def is_complete(self) -> bool:
        return len(self.seen) == len(self.sent)

    def latencies_ms(self) -> list[float]:
        return sorted((self.seen[name] - at) * 1000 for name, at in self.sent.items())


def percentile(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


class Bench:
    def __init__(self, stack: StackProcess) -> None:
        self._stack = stack
        self._postgres = stack.address("postgres").replace("postgres@", "postgres:password@")
        self._client = Client(stack.address("envoy"), token=stack.token())
        self._events = self._client.stream("session-events")
        self._stop = threading.Event()

    def run(self, title: str, secs: float, rate: int) -> None:
        to_stream, to_postgres, decoded = Probes(), Probes(), Probes()
        watchers: list[Callable[[], None]] = [
            lambda: self._watch_stream(to_stream),
            lambda: self._watch_table(to_postgres),
            lambda: self._watch_feed(decoded),
        ]
        self._stop.clear()
        threads = [threading.Thread(target=watch, daemon=True) for watch in watchers]
        if rate:
            loads: list[Callable[[], None]] = [
                lambda: self._load_table(rate),
                lambda: self._load_stream(rate),
            ]
            threads += [threading.Thread(target=load, daemon=True) for load in loads]
        for thread in threads:
            thread.start()
        self._probe(secs, to_stream, to_postgres, decoded)
        for probes, what in ((to_stream, "pg-items"), (to_postgres, "session_events")):
            eventually(lambda probes=probes: probes.is_complete, what, SETTLE_SECS)  # type: ignore[misc]
        self._stop.set()
        for thread in threads:
            thread.join(30)
        print(f"\n{title}")
        _print("Postgres commit to SSE client", to_stream)
        _print("append to Postgres row", to_postgres)
        _print("of which: commit to decoded", decoded)
        for name in ("postgres-to-stream", "stream-to-postgres"):
            told = json.loads(
                (self._stack.state.path / "pipelines" / name / "progress.json").read_text()
            )
            print(f"  last trigger of {name}: {told['batch_secs'] * 1000:.0f} ms")

    def _probe(self, secs: float, to_stream: Probes, to_postgres: Probes, fed: Probes) -> None:
        deadline = time.monotonic() + secs
        with psycopg.connect(self._postgres, autocommit=True) as connection:
            while time.monotonic() < deadline:
                name = f"probe-{uuid4()}"
                connection.execute("insert into items (title) values (%s)", (name,))
                to_stream.sent[name] = fed.sent[name] = time.monotonic()
                to_postgres.sent[name] = time.monotonic()
                self._events.append_json({"key": name, "type": "probe", "operation": "set"})
                time.sleep(PROBE_EVERY_SECS)

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


def _print(name: str, probes: Probes) -> None:
    found = sorted(
        (probes.seen[n] - at) * 1000 for n, at in probes.sent.items() if n in probes.seen
    )
    if not found:
        print(f"  {name}: nothing was seen")
        return
    p50, p99 = percentile(found, 0.5), percentile(found, 0.99)
    print(f"  {name}: p50 {p50:.0f} ms, p99 {p99:.0f} ms, {len(found)} probes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--secs", type=float, default=30, help="length of each measurement")
    parser.add_argument("--rate", type=int, default=1000, help="changes a second of the load")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    home.chmod(0o755)  # as root, Postgres runs as another account
    try:
        with StackProcess(home / "state", "sync") as stack:
            bench = Bench(stack)
            _warm_up(stack)
            bench.run("at rest", given.secs, 0)
            bench.run(f"beside {given.rate} changes/s each way", given.secs, given.rate)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _warm_up(stack: StackProcess) -> None:
    """Spark's first batches compile and load; they are not what is measured."""
    postgres = stack.address("postgres").replace("postgres@", "postgres:password@")
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("insert into items (title) values ('warm')")
    url = f"{stack.address('server')}/v1/stream/pg-items"
    eventually(lambda: httpx.head(url).status_code == 200, "the first batch", SETTLE_SECS)


if __name__ == "__main__":
    main()
