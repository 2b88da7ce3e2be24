"""A real cluster, a master and two workers: the same pipelines, the same results; and the command
line and spark-submit on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pyspark
import pytest
from pyspark.sql import SparkSession

from headrace.client import Client
from headrace.spark.pipelines import stream_to_postgres
from headrace.spark.pipelines.progress import read_progress
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.postgres.fixtures import database
from tests.spark.cluster import CONF, STARTS_MAX, Cluster, is_too_busy
from tests.spark.pipelines import Place

pytestmark = pytest.mark.slow

_DEADLINE_SECS = 600.0
# One query needs one core, so one executor; every other costs a Java machine and Python processes.
_SMALL = CONF | {"spark.cores.max": "1"}


class Program:
    """A program that is started again if Spark had no time for it."""

    def __init__(self, home: Path, *command: str) -> None:
        self._out, self._log = home / "program.out", home / "program.log"
        self._command = command
        self._starts = 0
        self._start()

    def _start(self) -> None:
        self._starts += 1
        with self._out.open("wb") as out, self._log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            )

    def check(self) -> bool:
        """Whether it runs."""
        code = self.process.poll()
        if code and is_too_busy(self._log.read_text()) and self._starts < STARTS_MAX:
            self._start()
            return True
        return code is None

    def output(self, code: int = 0) -> tuple[str, str]:
        """What it said, when it has ended."""
        try:
            eventually(lambda: not self.check(), "the end of a program", _DEADLINE_SECS)
        finally:
            self.process.kill()
            self.process.wait()
        out, log = self._out.read_text(), self._log.read_text()
        assert self.process.returncode == code, log[-4000:]
        return out, log


def python(home: Path, *arguments: str) -> Program:
    return Program(home, sys.executable, "-m", *arguments)


other_database = database


def test_every_pipeline_gives_on_a_cluster_what_it_gives_on_one_machine(
    spark: SparkSession,
    cluster: Cluster,
    server: ServerProcess,
    database: str,
    other_database: str,
    tmp_path: Path,
) -> None:
    away = tmp_path / "away"
    # One after the other: the machine may be small.
    there = json.loads(
        python(
            tmp_path, "tests.spark.pipelines", cluster.url, str(away), server.url, other_database
        ).output()[0]
    )
    here = Place(spark, tmp_path / "here", server.url, database).run_all()
    assert here["postgres-to-stream"] == [
        {"id": number, "title": f"item {number}"} for number in range(1, 121)
    ]
    assert {name: len(result) for name, result in here.items()} == {
        "stream-to-postgres": 240,
        "postgres-to-stream": 120,
        "apply-changes": 6,
        "sessions": 12,
        "archive": 240,
        "replay": 6,
        "compact": 6,
    }
    assert there == json.loads(json.dumps(here))


def test_a_pipeline_stops_at_ctrl_c_and_goes_on_by_spark_submit_on_one_machine(
    cluster: Cluster, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    config = tmp_path / "pipelines.toml"
    spark = "".join(f'"{key}" = "{value}"\n' for key, value in _SMALL.items())
    config.write_text(
        f'[spark]\n{spark}[stream-to-postgres]\nserver = "{server.url}"\n'
        f'postgres = "{database}"\nstreams = ["cluster/in"]\nquarantine = "cluster/bad"\n'
    )
    state = tmp_path / "state"
    told = ["--config", str(config), "--state", str(state)]
    with Client(server.url) as client:
        stream = client.stream("cluster/in")
        stream.create("application/json")
        stream.append_json(*({"key": f"k{n}"} for n in range(500)))
        run = ["headrace.cli", "pipeline", "run", "stream-to-postgres", "--continuous"]
        running = python(tmp_path, *run, "--master", cluster.url, *told)
        try:
            await_count(running, database, 500)
            eventually(lambda: kept_state(state) == "running", "its progress", _DEADLINE_SECS)
            assert status(state)["state"] == "running"
            stream.append_json({"key": "later"})
            await_count(running, database, 501)
        finally:
            running.process.send_signal(signal.SIGINT)
            running.output()
        # The last batch may have been cut off after its rows were in: then it comes again.
        assert status(state)["state"] == "stopped"
        stream.append_json({"key": "last"}, "not an object")
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        module = stream_to_postgres.__file__
        settings = [f"--conf={key}={value}" for key, value in _SMALL.items()]
        command = [str(submit), "--master", "local[1]", *settings, module, "--once", *told]
        Program(tmp_path, *command).output()
        with psycopg.connect(database) as connection:
            assert count(connection) == 502
        assert len(client.stream("cluster/bad").read_json()) == 1
    assert status(state)["state"] == "stopped"


def await_count(running: Program, url: str, rows: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:

        def has() -> bool:
            assert running.check(), running.output()
            return count(connection) == rows

        eventually(has, f"{rows} rows", _DEADLINE_SECS)


def count(connection: psycopg.Connection) -> int:
    if connection.execute("select to_regclass('session_events')").fetchone() == (None,):
        return 0
    row = connection.execute("select count(*) from session_events").fetchone()
    assert row is not None
    return int(row[0])


def kept_state(state: Path) -> str | None:
    """What the command line would say, without a process to ask it."""
    progress = read_progress(state / "stream-to-postgres")
    return None if progress is None else progress.state


def status(state: Path) -> dict[str, object]:
    out, _ = python(
        state, "headrace.cli", "pipeline", "status", "--json", "--state", str(state)
    ).output()
    found: dict[str, object] = json.loads(out)
    return found


def test_the_pipelines_are_listed(tmp_path: Path) -> None:
    shown, _ = python(tmp_path, "headrace.cli", "pipeline", "list").output()
    assert [line.split()[0] for line in shown.splitlines()] == [
        "apply-changes", "archive", "compact", "postgres-to-stream", "replay", "sessions",
        "stream-to-postgres",
    ]  # fmt: skip


def test_a_failed_pipeline_says_why_and_exits_with_1(
    server: ServerProcess, database: str, tmp_path: Path
) -> None:
    config = tmp_path / "pipelines.toml"
    config.write_text(
        f'[postgres-to-stream]\nserver = "{server.url}"\npostgres = "{database}"\n'
        'tables = ["absent"]\nelectric = ""\n'
    )
    told = ["--config", str(config), "--state", str(tmp_path)]
    run = ["headrace.cli", "pipeline", "run", "postgres-to-stream", "--once"]
    _, log = python(tmp_path, *run, "--master", "local[1]", *told).output(code=1)
    assert "There is no table public.absent" in log.splitlines()[-1]
    status_of = ["headrace.cli", "pipeline", "status", "--state", str(tmp_path)]
    shown, _ = python(tmp_path, *status_of).output(code=1)
    assert "There is no table public.absent" in shown
