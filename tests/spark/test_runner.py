"""Pipelines as a process: one that fails begins again, and a signal ends them cleanly."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar, cast

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from typer.testing import CliRunner

from headrace.cli.pipeline import app
from headrace.client import Client
from headrace.spark.pipelines import archive
from headrace.spark.pipelines.base import Pipeline, PipelineConfig, Run
from headrace.spark.pipelines.batch_job import Job, started
from headrace.spark.pipelines.progress import (
    FAILED,
    RETRYING,
    RUNNING,
    STOPPED,
    Progress,
    read_progress,
)
from headrace.spark.pipelines.runner import (
    PipelineRun,
    PipelineSpec,
    _pause_secs,
    explain,
    run_all,
)
from headrace.spark.pipelines.state_lock import locked
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually

pytestmark = pytest.mark.slow

_DEADLINE_SECS = 120.0
_PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"


def test_one_that_fails_begins_again_while_the_others_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    stopping = threading.Event()
    attempts: list[str] = []
    rounds: list[str] = []

    def shaky(session: SparkSession, config: PipelineConfig, run: Run) -> StreamingQuery:
        attempts.append("shaky")
        if len(attempts) == 1:
            raise RuntimeError("Postgres is unreachable")
        return started(Job(broken_once, pause_secs=0.01))

    def broken_once(job: Job) -> int:
        if len(attempts) == 2:
            raise RuntimeError("away again")
        stopping.set()
        return 1

    def steady(session: SparkSession, config: PipelineConfig, run: Run) -> StreamingQuery:
        assert not rounds, "begins once"
        return started(Job(go_on, pause_secs=0.01))

    def go_on(job: Job) -> int:
        rounds.append("steady")
        return 1

    pipelines = [Pipeline(n, "", PipelineConfig, s) for n, s in (("a", shaky), ("b", steady))]
    works = [PipelineSpec(p, PipelineConfig(), Run(False, tmp_path / p.name)) for p in pipelines]
    begun = [PipelineRun(work, may_begin_again=True) for work in works]
    run_all(spark, begun, stopping, lambda progress: None)
    assert len(attempts) == 3
    assert len(rounds) > 1
    told = [read_progress(tmp_path / pipeline.name) for pipeline in pipelines]
    assert [progress.state for progress in told if progress] == [STOPPED, STOPPED]


class Failing:
    """A query that fails while it looks for what there is, or once it has found a batch."""

    isActive = True  # noqa: N815
    status: ClassVar[dict[str, Any]] = {"isDataAvailable": False}

    def __init__(self, *batches: int) -> None:
        self.recentProgress = [{"batchId": n, "numInputRows": 0} for n in batches]
        self._polls = iter([False])

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
        for polled in self._polls:
            return polled
        raise RuntimeError("Postgres is unreachable")


def test_a_pipeline_that_keeps_failing_shows_how_long_and_why(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In the attempts of one process, and in the processes of a service that is restarted."""
    Progress("a", 1, caught_up_at=time.time() - 1000, failures_in_row=2).write(tmp_path)
    stopping, told = threading.Event(), list[tuple[str, float]]()

    def begin(session: SparkSession, config: PipelineConfig, run: Run) -> StreamingQuery:
        return cast(StreamingQuery, Failing())

    def watch(progress: Progress) -> None:
        told.append((progress.state, progress.lag_secs))
        if progress.failures_in_row == 4:
            stopping.set()

    work = PipelineSpec(
        Pipeline("a", "", PipelineConfig, begin), PipelineConfig(), Run(False, tmp_path)
    )
    run_all(spark, [PipelineRun(work, may_begin_again=True)], stopping, watch)
    assert min(lag for _, lag in told) >= 1000
    assert {state for state, _ in told[:-1]} == {RETRYING}
    progress = read_progress(tmp_path)
    assert progress is not None
    assert (progress.state, progress.failures, progress.failures_in_row) == (FAILED, 2, 4)
    result = CliRunner().invoke(app, ["status", "--state", str(tmp_path.parent)])
    output = " ".join(result.output.split())
    assert result.exit_code == 1
    assert "4 failures in a row; the last one: Postgres is unreachable" in output


def test_an_attempt_that_finds_nothing_to_do_is_caught_up_and_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    Progress("a", 1, caught_up_at=1.0, failures_in_row=2, last_error="away").write(tmp_path)
    told = list[tuple[str, float, str | None]]()

    def begin(session: SparkSession, config: PipelineConfig, run: Run) -> StreamingQuery:
        return cast(StreamingQuery, Failing(0))

    work = PipelineSpec(
        Pipeline("a", "", PipelineConfig, begin), PipelineConfig(), Run(False, tmp_path)
    )
    run_all(
        spark,
        [PipelineRun(work, may_begin_again=False)],
        threading.Event(),
        lambda p: told.append((p.state, p.lag_secs, p.last_error)),
    )
    assert told[0][0] == RETRYING, "it has begun, and not got further yet"
    assert told[1] == (RUNNING, 0.0, "away"), "for a minute it may fail as the last one did"
    assert told[-1][0] == FAILED


def test_those_that_end_by_themselves_run_in_the_order_given(
    spark: SparkSession, tmp_path: Path
) -> None:
    done: list[str] = []

    def beginning(name: str) -> Pipeline:
        def work(job: Job) -> int:
            if name == "c":
                raise RuntimeError("a wrong setting")
            done.append(name)
            return 1

        def begin(session: SparkSession, config: PipelineConfig, run: Run) -> StreamingQuery:
            assert done == sorted("abcd"[: "abcd".index(name)]), "those before it are through"
            return started(Job(work))

        return Pipeline(name, "", PipelineConfig, begin)

    works = [
        PipelineSpec(beginning(name), PipelineConfig(), Run(True, tmp_path / name))
        for name in "abcd"
    ]
    begun = [PipelineRun(work, may_begin_again=False) for work in works]
    run_all(spark, begun, threading.Event(), lambda progress: None)
    assert done == ["a", "b"]
    assert [each.progress.state for each in begun] == [STOPPED, STOPPED, FAILED, STOPPED]


def test_a_worker_that_could_not_start_is_waited_for_longer() -> None:
    error = RuntimeError("Caused by: java.io.IOException: Python worker failed to connect back.")
    assert "the machine is overloaded, nothing is lost" in explain(error)
    assert _pause_secs(error, 1) >= 10
    assert _pause_secs(RuntimeError("away"), 1) == 1


def test_a_planner_that_is_killed_is_named_in_the_status_and_the_log(
    spark: SparkSession, server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(server.url) as client:
        stream = client.stream("planner")
        stream.create("application/json")
        stream.append_json(1)
    config = archive.Config(
        server=server.url, streams=("planner",), table=str(tmp_path / "lake"), progress=""
    )
    stopping, reasons = threading.Event(), list[str]()

    def watch(progress: Progress) -> None:
        if progress.last_error:
            reasons.append(progress.last_error)
            stopping.set()
        elif progress.rows == 1:
            for process in psutil.Process().children(recursive=True):
                if _is_alive(process) and _PLANNER in process.cmdline():
                    process.kill()

    begun = PipelineRun(
        PipelineSpec(archive.PIPELINE, config, Run(False, tmp_path)), may_begin_again=True
    )
    run_all(spark, [begun], stopping, watch)
    assert reasons[0].startswith("A Python process of Spark that plans what a source reads")
    told = read_progress(tmp_path)
    assert told is not None
    assert (told.state, told.last_error) == (FAILED, reasons[0])
    assert f"archive failed and begins again in 1 s: {reasons[0]}" in capsys.readouterr().err


def test_one_that_may_not_begin_again_ends_the_others(spark: SparkSession, tmp_path: Path) -> None:
    def failing(session: SparkSession, config: PipelineConfig, run: Run) -> StreamingQuery:
        raise RuntimeError("a wrong setting")

    def steady(session: SparkSession, config: PipelineConfig, run: Run) -> StreamingQuery:
        return started(Job(lambda job: 1, pause_secs=0.01))

    pipelines = [Pipeline(n, "", PipelineConfig, s) for n, s in (("a", failing), ("b", steady))]
    works = [PipelineSpec(p, PipelineConfig(), Run(False, tmp_path / p.name)) for p in pipelines]
    begun = [PipelineRun(work, may_begin_again=False) for work in works]
    run_all(spark, begun, threading.Event(), lambda progress: None)
    assert [each.progress.last_error for each in begun] == ["a wrong setting", None]


def test_one_that_is_stopped_before_it_begins_has_stopped(
    spark: SparkSession, tmp_path: Path
) -> None:
    def unasked(session: SparkSession, config: PipelineConfig, run: Run) -> StreamingQuery:
        raise AssertionError("begins all the same")

    work = PipelineSpec(
        Pipeline("a", "", PipelineConfig, unasked), PipelineConfig(), Run(False, tmp_path)
    )
    stopping = threading.Event()
    stopping.set()
    run_all(spark, [PipelineRun(work, may_begin_again=False)], stopping, lambda progress: None)
    progress = read_progress(tmp_path)
    assert progress is not None
    assert (progress.state, progress.last_error) == (STOPPED, None)


def test_a_state_has_one_run_at_a_time(tmp_path: Path) -> None:
    command = ["run", "compact", "--state", str(tmp_path)]
    with locked(tmp_path / "compact"):
        before = sorted((tmp_path / "compact").iterdir())
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2
        assert f"is in use by the process {os.getpid()}" in " ".join(result.output.split())
        assert sorted((tmp_path / "compact").iterdir()) == before
    with locked(tmp_path / "compact"):
        """It is free again."""


def test_sigterm_to_every_process_ends_a_pipeline_cleanly(
    server: ServerProcess, tmp_path: Path
) -> None:
    """systemd sends it to all of a service's processes: Java and Python workers get it, too."""
    log, place = tmp_path / "log", tmp_path / "archive"
    with Client(server.url) as client:
        stream = client.stream("sigterm")
        stream.create("application/json")
        stream.append_json(1)
        command = _archiving(
            *(server, tmp_path, "sigterm", "--metrics-listen", "0"),
            spark='"spark.ui.enabled" = true\n"spark.ui.port" = 0',
        )
        with log.open("wb") as err:
            running = subprocess.Popen(command, stderr=err)
        try:
            eventually(lambda: _rows(running, place, log) == 1, "a batch", _DEADLINE_SECS)
            _check_figures_are_served(tmp_path, log.read_text())
            everyone = psutil.Process(running.pid).children(recursive=True)
            assert len(everyone) > 2, "Java, and Python workers that are kept"
            for process in everyone:
                process.terminate()
            stream.append_json(2)
            eventually(lambda: _rows(running, place, log) == 2, "another batch", _DEADLINE_SECS)
            for process in [psutil.Process(running.pid), *everyone]:
                process.terminate()
            assert running.wait(_DEADLINE_SECS) == 0, log.read_text()
        finally:
            running.kill()
            running.wait()
    eventually(lambda: not any(map(_is_alive, everyone)), "the end of all", _DEADLINE_SECS)
    progress = read_progress(place)
    assert progress is not None
    assert (progress.state, progress.last_error) == (STOPPED, None)
    assert "Traceback" not in log.read_text()


def _check_figures_are_served(state: Path, log: str) -> None:
    """While it runs: Prometheus finds its metrics, and a person the pages of Spark."""
    served = re.search(r"Metrics at (http://127\.0\.0\.1:\d+/metrics)", log)
    assert served is not None, log
    scraped = httpx.get(served[1]).text
    assert 'headrace_pipeline_up{pipeline="archive"} 1.0' in scraped
    assert 'headrace_pipeline_rows_total{pipeline="archive"} 1.0' in scraped
    status = CliRunner().invoke(app, ["status", "--state", str(state)]).output
    pages = re.search(r"Spark UI: (http://\S+)", status)
    assert pages is not None, status
    assert httpx.get(pages[1], follow_redirects=True).status_code == 200


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _archiving(
    server: ServerProcess, home: Path, stream: str, *more: str, spark: str = ""
) -> list[str]:
    config = home / "c.toml"
    config.write_text(
        f"[spark]\n{spark}\n"
        f'[archive]\nserver = "{server.url}"\nstreams = ["{stream}"]\ntable = "{home / "lake"}"\n'
    )
    command = [sys.executable, "-m", "headrace.cli", "pipeline", "run", "archive"]
    place = ("--config", str(config), "--state", str(home))
    return [*command, "--master", "local[1]", *place, *more]


def _rows(running: subprocess.Popen[bytes], place: Path, log: Path) -> int:
    assert running.poll() is None, log.read_text()
    progress = read_progress(place)
    return 0 if progress is None else progress.rows


def test_ctrl_c_ends_a_pipeline_cleanly_while_it_starts(
    server: ServerProcess, tmp_path: Path
) -> None:
    """The terminal sends SIGINT to the whole group: Java and its workers get it, too."""
    with Client(server.url) as client:
        client.stream("ctrl-c").create("application/json")
    log, place = tmp_path / "log", tmp_path / "archive"
    command = _archiving(server, tmp_path, "ctrl-c")
    with log.open("wb") as err:
        running = subprocess.Popen(command, stderr=err, start_new_session=True)

    def has_begun() -> bool:
        assert running.poll() is None, log.read_text()
        return read_progress(place) is not None

    try:
        eventually(has_begun, "the beginning", _DEADLINE_SECS)
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(_DEADLINE_SECS) == 0, log.read_text()
    finally:
        running.kill()
        running.wait()
    progress = read_progress(place)
    assert progress is not None
    assert (progress.state, progress.last_error) == (STOPPED, None)
    assert "Traceback" not in log.read_text()
