"""Several pipelines in one process: one that fails begins again, and the others go on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.spark.pipelines.base import Pipeline, PipelineConfig, Run
from headrace.spark.pipelines.job import Job, started
from headrace.spark.pipelines.progress import STOPPED, read_progress
from headrace.spark.pipelines.runner import Begun, Work, run_all

pytestmark = pytest.mark.slow


def test_one_that_fails_begins_again_while_the_others_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    stopping = threading.Event()
    attempts: list[str] = []
    rounds: list[str] = []

    def shaky(session: SparkSession, config: PipelineConfig, run: Run) -> StreamingQuery:
        attempts.append("shaky")
        if len(attempts) == 1:
            raise RuntimeError("Postgres is away")
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
    works = [Work(p, PipelineConfig(), Run(False, tmp_path / p.name)) for p in pipelines]
    begun = [Begun(work, may_begin_again=True) for work in works]
    run_all(spark, begun, stopping, lambda progress: None)
    assert len(attempts) == 3
    assert len(rounds) > 1
    told = [read_progress(tmp_path / pipeline.name) for pipeline in pipelines]
    assert [progress.state for progress in told if progress] == [STOPPED, STOPPED]


def test_one_that_may_not_begin_again_ends_the_others(spark: SparkSession, tmp_path: Path) -> None:
    def failing(session: SparkSession, config: PipelineConfig, run: Run) -> StreamingQuery:
        raise RuntimeError("a wrong setting")

    def steady(session: SparkSession, config: PipelineConfig, run: Run) -> StreamingQuery:
        return started(Job(lambda job: 1, pause_secs=0.01))

    pipelines = [Pipeline(n, "", PipelineConfig, s) for n, s in (("a", failing), ("b", steady))]
    works = [Work(p, PipelineConfig(), Run(False, tmp_path / p.name)) for p in pipelines]
    begun = [Begun(work, may_begin_again=False) for work in works]
    run_all(spark, begun, threading.Event(), lambda progress: None)
    assert [each.progress.last_error for each in begun] == ["a wrong setting", None]
