"""Both Postgres pipelines on a cluster, under load that grows, while their driver, a worker, the
server and Postgres are killed at random: what arrives is what was sent, once and in order.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Self

import psycopg
from pyspark.sql import SparkSession

from headrace.client import Client, ProducerStamp, Retry
from headrace.errors import StreamNotFound
from headrace.spark.pipelines.base import Run
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.postgres.fixtures import private_postgres
from tests.spark.both_ways import STREAMS, start_there, there
from tests.spark.cluster import WORKERS, Cluster

KINDS = ("driver", "worker", "server", "postgres")
_ROUND_ROWS = 100  # a kill comes after up to this many more have arrived on both sides
_MOMENT_SECS = 1.0  # and then at any moment of about a batch
_DEADLINE_SECS = 600.0
_STREAM_BYTES_MAX = 2**30  # a long campaign outgrows the default
_PAUSE_SECS = 0.02
_LOOK_SECS = 0.5  # looking costs the machine more than waiting
_KILLS_PER_STEP = 4  # after so many the load grows by what it was at first
# A query may fail when what it talks to is killed, or when the machine is too busy to call back in
# time. Whoever supervises it starts it again, so this does, but not for ever.
_RESTARTS_PER_KILL = 2


Lists = dict[str, list[int]]


@dataclass(frozen=True)
class Outcome:
    """What arrived, against what was sent."""

    sent: int
    missing: int
    duplicated: int
    in_order: bool

    @classmethod
    def of(cls, sent: Lists, arrived: Lists) -> Outcome:
        """Of what stands in each stream, by its name."""
        all_sent = Counter((name, n) for name, numbers in sent.items() for n in numbers)
        counts = Counter((name, n) for name, numbers in arrived.items() for n in numbers)
        return cls(
            sent=len(all_sent),
            missing=len(all_sent.keys() - counts.keys()),
            duplicated=sum(count - 1 for count in counts.values()),
            in_order=arrived == sent,
        )

    @property
    def is_exact(self) -> bool:
        return self.missing == 0 and self.duplicated == 0 and self.in_order


class Campaign:
    """A server, a Postgres, a driver on a cluster, load on both sides, and kills."""

    def __init__(self, cluster: Cluster, seed: int, *, exactly_once: bool = True) -> None:
        self._cluster = cluster
        self.random = random.Random(seed)
        self._exactly_once = exactly_once
        self._home = Path(tempfile.mkdtemp(prefix="headrace-kills-"))
        self._stack = ExitStack()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._appended: Lists = {name: [] for name in STREAMS}
        self._inserted = self.restarts = 0
        self.killed: Counter[str] = Counter()

    def __enter__(self) -> Self:
        try:
            self.postgres = self._stack.enter_context(private_postgres())
            self.server = self._serve("0")
            self._prepare()
            self._drive()
            for load in self._loads():
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
            self._kill_driver()
        with suppress(AttributeError):
            self.server.kill()
        self._stack.close()
        shutil.rmtree(self._home)

    def _prepare(self) -> None:
        with psycopg.connect(self.postgres.url) as connection:
            connection.execute("create table items (id int primary key, title text)")
        with self._client() as client:
            for name in STREAMS:
                client.stream(name).create("application/json")

    def _loads(self) -> Sequence[Callable[[], None]]:
        """What writes, each in a thread, until the campaign stops."""
        return self._append, self._insert

    def fight(self, kinds: Iterable[str], secs: float = math.inf) -> dict[str, Outcome]:
        """Make these kills in random order, then let everything arrive, and compare.

        After `secs` no more are made; `killed` says how many were.
        """
        order = list(kinds)
        self.random.shuffle(order)
        deadline = time.monotonic() + secs
        for number, kind in enumerate(order):
            if time.monotonic() > deadline:
                break
            now = time.strftime("%H:%M:%S")
            print(f"{now} {number + 1} of {len(order)}: kill {kind}", file=sys.stderr, flush=True)
            self.kill(kind)
        return self.finish()

    def kill(self, kind: str) -> None:
        """Kill one part at a random moment of the next round, and bring it back."""
        self._await_arrivals(self.random.randrange(1, _ROUND_ROWS))
        self._stop.wait(self.random.uniform(0, _MOMENT_SECS))
        self.killed[kind] += 1
        if kind == "driver":
            self._kill_driver(java_too=self.random.random() < 0.5)
            self._drive()
        elif kind == "worker":
            self._cluster.kill_worker(self.random.randrange(WORKERS))
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
        with suppress(AssertionError):  # then it is missing, and the outcome says so
            eventually(
                self._has_arrived, "every record on the other side", _DEADLINE_SECS, _LOOK_SECS
            )
        return self.outcomes()

    def repeat_without(self, spark: SparkSession) -> Outcome:
        """Go on as if killed before the last batch to Postgres was noted, without a ledger.

        The other way there is no such batch: what is noted, its replication slot has let go.
        """
        self._kill_driver()
        state = there(self._state)
        noted = state / "checkpoint" / "commits"
        last = max(int(path.name) for path in noted.iterdir() if path.name.isdigit())
        (noted / str(last)).unlink()
        query = start_there(spark, Run(True, state), self.server.url, self.postgres.url, False)
        assert query.awaitTermination(int(_DEADLINE_SECS)), "the repeated batch has not ended"
        return self.outcomes()["stream to postgres"]

    def _kill_driver(self, *, java_too: bool = True) -> None:
        """Its Java machine is a process of its own; left alone it goes on until it notices."""
        with suppress(ProcessLookupError):
            if java_too:
                os.killpg(self._driver.pid, signal.SIGKILL)
        self._driver.kill()
        self._driver.wait()

    def _has_arrived(self) -> bool:
        self._check_driver()
        return not any(outcome.missing for outcome in self.outcomes().values())

    def outcomes(self) -> dict[str, Outcome]:
        """What is there now, against what was acknowledged to the load."""
        arrived: Lists = {name: [] for name in STREAMS}
        query = "select stream_name, (payload->>'n')::int from session_events order by id"
        for name, number in self._rows(query):
            arrived[name].append(number)
        with self._client() as client:
            items = [row["id"] for row in client.stream("pg-items").read_json()]
        return {
            "stream to postgres": Outcome.of(self._appended, arrived),
            "postgres to stream": Outcome.of(
                {"items": list(range(self._inserted))}, {"items": items}
            ),
        }

    def _arrived(self) -> tuple[int, ...]:
        """How many records are in the table, and how many in the stream."""
        [(made,)] = self._rows("select to_regclass('session_events') is not null")
        rows = self._rows("select count(*) from session_events")[0][0] if made else 0
        with self._client() as client:
            try:
                return rows, int(client.stream("pg-items").head().next_offset[:16])
            except StreamNotFound:
                return rows, 0

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.postgres.url) as connection:
            return connection.execute(query.encode()).fetchall()

    def _await_arrivals(self, more: int) -> None:
        before = self._arrived()

        def have_grown() -> bool:
            self._check_driver()
            return all(
                now >= then + more for now, then in zip(self._arrived(), before, strict=True)
            )

        eventually(have_grown, "records to arrive on both sides", _DEADLINE_SECS, _LOOK_SECS)

    def _check_driver(self) -> None:
        """It runs, or ended by itself and is started again."""
        assert self._stop.is_set() or all(thread.is_alive() for thread in self._threads)
        code = self._driver.poll()
        if code is None:
            return
        self.restarts += 1
        log = self._log.read_text()
        print(f"the driver ended by itself ({code}): {log[-500:]}", file=sys.stderr, flush=True)
        most = _RESTARTS_PER_KILL * (self.killed.total() + 2)
        assert self.restarts <= most, f"the driver ended again ({code}): {log[-3000:]}"
        self._log.unlink()
        self._drive()

    @property
    def _log(self) -> Path:
        return self._home / "driver.log"

    @property
    def _state(self) -> Path:
        return self._home / "state"

    def _client(self) -> Client:
        retry = Retry(retries_max=None, delay_max_ms=500)
        return Client(self.server.url, retry=retry)

    def _serve(self, port: str) -> ServerProcess:
        env = {
            "DS_STORAGE__MODE": "file-durable",
            "DS_STORAGE__DATA_DIR": str(self._home / "data"),
            "DS_LIMITS__MAX_STREAM_BYTES": str(_STREAM_BYTES_MAX),
        }
        server = ServerProcess(env, ["--port", port], cwd=str(self._home))
        server.start()
        return server

    def _drive(self) -> None:
        with self._log.open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _command(self) -> list[str]:
        """The driver's module and its arguments."""
        command = ["tests.spark.both_ways", self._cluster.url, str(self._state)]
        command += [self.server.url, self.postgres.url]
        return command if self._exactly_once else [*command, "--at-least-once"]

    @property
    def _step(self) -> int:
        """How many records go at once."""
        return 1 + self.killed.total() // _KILLS_PER_STEP

    def _append(self) -> None:
        with self._client() as client:
            for seq in count():
                for name in STREAMS:
                    if self._stop.wait(_PAUSE_SECS):
                        return
                    begin = len(self._appended[name])
                    numbers = range(begin, begin + self._step)
                    client.stream(name).append_json(
                        *({"key": "k", "n": n} for n in numbers),
                        producer=ProducerStamp("load", 0, seq),
                    )
                    self._appended[name].extend(numbers)

    def _insert(self) -> None:
        insert = "insert into items select generate_series(%s::int, %s::int) on conflict do nothing"
        while not self._stop.is_set():
            with (
                suppress(psycopg.OperationalError),
                psycopg.connect(self.postgres.url, autocommit=True) as connection,
            ):
                while not self._stop.is_set():
                    end = self._inserted + self._step
                    connection.execute(insert, (self._inserted, end - 1))
                    self._inserted = end
                    self._stop.wait(_PAUSE_SECS)
            self._stop.wait(_PAUSE_SECS)
