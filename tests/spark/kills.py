"""Both Postgres pipelines under growing load, while their driver, the server and Postgres are
killed at random: what arrives is what was sent, once and in order.

As a program, with a report: `python -m tests.spark.kills --each 20 --report FILE`.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg

from headrace.client import Client, ProducerStamp, Retry
from headrace.errors import StreamNotFound
from headrace.testing.server import ServerProcess
from headrace.testing.waiting import eventually
from tests.postgres.fixtures import private_postgres

KINDS = ("driver", "server", "postgres")
_ROUND_ROWS = 300  # a kill comes after up to this many more have arrived on both sides
_DEADLINE_SECS = 600.0
_PAUSE_SECS = 0.02
_LOOK_SECS = 0.5
# A query may fail when what it talks to is killed, or when the machine is too busy to call back in
# time. Whoever supervises it starts it again, so this does, but not for ever.
_RESTARTS_MAX = 6


@dataclass(frozen=True)
class Outcome:
    """What arrived, against what was sent."""

    sent: int
    missing: int
    duplicated: int
    in_order: bool

    @classmethod
    def of(cls, sent: list[int], arrived: list[int]) -> Outcome:
        counts = Counter(arrived)
        return cls(
            len(sent),
            len(set(sent) - counts.keys()),
            sum(count - 1 for count in counts.values()),
            arrived == sent,
        )

    @property
    def is_exact(self) -> bool:
        return self.missing == 0 and self.duplicated == 0 and self.in_order


class Campaign:
    """A server, a Postgres, a driver, load on both sides, and kills."""

    def __init__(self, seed: int, *, exactly_once: bool = True) -> None:
        self.random = random.Random(seed)
        self._exactly_once = exactly_once
        self._home = Path(tempfile.mkdtemp(prefix="headrace-kills-"))
        self._stack = ExitStack()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.appended = self.inserted = self._restarts = 0

    def __enter__(self) -> Campaign:
        try:
            self.postgres = self._stack.enter_context(private_postgres())
            with psycopg.connect(self.postgres.url) as connection:
                connection.execute("create table items (id int primary key, title text)")
            self.server = self._serve("0")
            with self._client() as client:
                client.stream("in").create("application/json")
            self._drive()
            for load in (self._append, self._insert):
                self._threads.append(threading.Thread(target=load))
                self._threads[-1].start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        with suppress(AttributeError):
            self._driver.kill()
            self._driver.wait()
        with suppress(AttributeError):
            self.server.kill()
        self._stack.close()
        shutil.rmtree(self._home)

    def kill(self, kind: str) -> None:
        """Kill one part at a random moment of the next round, and bring it back."""
        self._await_arrivals(self.random.randrange(1, _ROUND_ROWS))
        if kind == "driver":
            self._driver.kill()
            self._driver.wait()
            self._drive()
        elif kind == "server":
            port = str(self.server.port)
            self.server.kill()
            self.server = self._serve(port)
        else:
            self.postgres.kill()
            self.postgres.start()

    def finish(self) -> dict[str, Outcome]:
        """Stop the load, let everything arrive, and compare."""
        self._await_arrivals(_ROUND_ROWS)
        self._stop.set()
        for thread in self._threads:
            thread.join()
        eventually(self._has_arrived, "every record on the other side", _DEADLINE_SECS)
        with self._client() as client:
            sent = [message["n"] for message in client.stream("in").read_json()]
            arrived_back = [row["id"] for row in client.stream("pg-items").read_json()]
        arrived = self._rows("select (payload->>'n')::int from session_events order by id")
        return {
            "stream to postgres": Outcome.of(sent, arrived),
            "postgres to stream": Outcome.of(
                self._rows("select id from items order by id"), arrived_back
            ),
        }

    def _has_arrived(self) -> bool:
        self._check_driver()
        messages = self._arrived()[1]
        last = self._rows("select max((payload->>'n')::int) from session_events")[0]
        return last == self.appended - 1 and messages >= self.inserted

    def _arrived(self) -> tuple[int, int]:
        """How many records are in the table, and how many in the stream."""
        time.sleep(_LOOK_SECS)  # looking costs the machine more than waiting
        made = self._rows("select (to_regclass('session_events') is not null)::int")[0]
        rows = self._rows("select count(*) from session_events")[0] if made else 0
        with self._client() as client:
            try:
                return rows, int(client.stream("pg-items").head().next_offset[:16])
            except StreamNotFound:
                return rows, 0

    def _rows(self, query: str) -> list[int]:
        with psycopg.connect(self.postgres.url) as connection:
            return [row[0] for row in connection.execute(query.encode()).fetchall()]

    def _await_arrivals(self, more: int) -> None:
        before = self._arrived()

        def have_grown() -> bool:
            self._check_driver()
            return all(
                now >= then + more for now, then in zip(self._arrived(), before, strict=True)
            )

        eventually(have_grown, "records to arrive on both sides", _DEADLINE_SECS)

    def _check_driver(self) -> None:
        """It runs, or ended by itself and is started again."""
        code = self._driver.poll()
        if code is None:
            return
        self._restarts += 1
        log = self._log.read_text()
        assert self._restarts <= _RESTARTS_MAX, f"the driver ended again ({code}): {log[-3000:]}"
        self._log.unlink()
        self._drive()

    @property
    def _log(self) -> Path:
        return self._home / "driver.log"

    def _client(self) -> Client:
        retry = Retry(retries_max=None, delay_max_ms=500)
        return Client(self.server.url, retry=retry)

    def _serve(self, port: str) -> ServerProcess:
        env = {"DS_STORAGE__MODE": "file-durable", "DS_STORAGE__DATA_DIR": str(self._home / "data")}
        server = ServerProcess(env, ["--port", port], cwd=str(self._home))
        server.start()
        return server

    def _drive(self) -> None:
        command = [sys.executable, "-m", "tests.spark.both_ways", str(self._home / "state")]
        command += [self.server.url, self.postgres.url]
        if not self._exactly_once:
            command.append("--at-least-once")
        with self._log.open("ab") as log:
            self._driver = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def _append(self) -> None:
        with self._client() as client:
            stream = client.stream("in")
            while not self._stop.is_set():
                stamp = ProducerStamp("load", 0, self.appended)
                stream.append_json({"key": "k", "n": self.appended}, producer=stamp)
                self.appended += 1
                self._stop.wait(_PAUSE_SECS)

    def _insert(self) -> None:
        while not self._stop.is_set():
            with (
                suppress(psycopg.OperationalError),
                psycopg.connect(self.postgres.url, autocommit=True) as connection,
            ):
                while not self._stop.is_set():
                    connection.execute(
                        "insert into items values (%s) on conflict do nothing", (self.inserted,)
                    )
                    self.inserted += 1
                    self._stop.wait(_PAUSE_SECS)
            self._stop.wait(_PAUSE_SECS)


def run(each: int, seed: int, *, exactly_once: bool = True) -> dict[str, Outcome]:
    """A campaign with every part killed `each` times, in random order."""
    with Campaign(seed, exactly_once=exactly_once) as campaign:
        order = [kind for kind in KINDS for _ in range(each)]
        campaign.random.shuffle(order)
        for number, kind in enumerate(order):
            print(f"{number + 1} of {len(order)}: kill {kind}", file=sys.stderr, flush=True)
            campaign.kill(kind)
        return campaign.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--at-least-once", action="store_true", help="switch the mechanism off")
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    started = time.time()
    outcomes = run(given.each, given.seed, exactly_once=not given.at_least_once)
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "kills of each of driver, server, postgres": given.each,
        "seed": given.seed,
        "exactly once": not given.at_least_once,
        "minutes": round((time.time() - started) / 60, 1),
        "outcomes": {name: asdict(outcome) for name, outcome in outcomes.items()},
    }
    text = json.dumps(report, indent=2)
    print(text)
    if given.report:
        given.report.write_text(text + "\n", "utf-8")
    exact = all(outcome.is_exact for outcome in outcomes.values())
    sys.exit(0 if exact or given.at_least_once else 1)


if __name__ == "__main__":
    main()
