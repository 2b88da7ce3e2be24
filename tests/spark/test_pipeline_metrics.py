"""What Prometheus scrapes of pipelines: figures of real batches, on a port that can be chosen."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from headrace.cli.metrics_listener import Address, served
from headrace.cli.pipeline import app
from headrace.client import Client
from headrace.spark.pipelines import archive, postgres_to_stream, stream_to_postgres
from headrace.spark.pipelines.base import Run
from headrace.spark.pipelines.pipeline_metrics import METRICS, PipelineMetrics
from headrace.spark.pipelines.progress import FAILED, RUNNING, Meter, Progress
from headrace.spark.pipelines.runner import PipelineRun, PipelineSpec, run_all
from headrace.spark.quarantine_count import QuarantineCount
from headrace.testing.server_process import ServerProcess

LONG_PIPELINE = PipelineSpec(archive.PIPELINE, archive.Config(), Run(False, Path("none")))


def samples(scraped: bytes) -> dict[tuple[str, ...], float]:
    """By name and the values of its labels."""
    families = text_string_to_metric_families(scraped.decode())
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def report(batch: int, end: Any, latest: Any) -> dict[str, Any]:
    source = {"description": "s", "endOffset": json.dumps(end), "latestOffset": json.dumps(latest)}
    steps = {"triggerExecution": 500, "addBatch": 300, "latestOffset": 200}
    return {"batchId": batch, "numInputRows": 7, "durationMs": steps, "sources": [source]}


def streams_at(messages: int, size: int) -> dict[str, Any]:
    return {"at": {"s": f"{messages:016d}_{size:016d}"}}


# --- what is counted ---


def test_time_is_added_up_by_step_and_batches_are_counted() -> None:
    meter = Meter(Progress("p", 1), now=0.0)
    for batch in (0, 1, 1):
        meter.saw(report(batch, streams_at(1, 10), streams_at(3, 90)), at=5.0 + batch)
    now = meter.progress
    assert (now.batches, now.last_batch_at) == (2, 6.0)
    assert now.steps_total_ms == {"addBatch": 600, "latestOffset": 400}
    assert (now.lag_rows, now.lag_bytes) == (2, 80)
    meter.idle(7.0)
    assert (now.lag_rows, now.lag_bytes) == (0, 0)


def test_lag_in_postgres_is_log_and_has_no_rows() -> None:
    meter = Meter(Progress("p", 1), now=0.0)
    meter.saw(report(0, {"lsn": "1/FF"}, {"lsn": "2/0"}), at=1.0)
    assert (meter.progress.lag_rows, meter.progress.lag_bytes) == (None, 2**32 - 0xFF)
    meter.tick(1.0)
    assert meter.progress.lag_secs == 0.5, "the changes of its tables may all be delivered"


def test_a_batch_that_is_committed_again_is_counted_once(tmp_path: Path) -> None:
    count = QuarantineCount.of(str(tmp_path))
    assert count is not None
    assert count.total() == 0
    for batch, records in ((3, 2), (3, 2), (4, 0), (5, 1)):
        count.add(batch, records)
    assert QuarantineCount(tmp_path).total() == 3
    assert QuarantineCount.of("s3://bucket/checkpoint") is None


def test_a_pipeline_that_has_failed_is_down_and_its_failures_are_counted() -> None:
    metrics = PipelineMetrics([LONG_PIPELINE])
    assert samples(metrics.scrape())["headrace_pipeline_up", "archive"] == 0
    metrics.saw(Progress("archive", 1, state=RUNNING))
    assert samples(metrics.scrape())["headrace_pipeline_up", "archive"] == 1
    metrics.saw(Progress("archive", 1, state=FAILED, failures=2))
    found = samples(metrics.scrape())
    assert found["headrace_pipeline_up", "archive"] == 0
    assert found["headrace_pipeline_failures_total", "archive"] == 2
    assert ("headrace_pipeline_last_batch_seconds", "archive") not in found


def test_a_postgres_that_does_not_answer_takes_no_other_metric_with_it() -> None:
    config = postgres_to_stream.Config(postgres="postgresql://127.0.0.1:1/none", slot="s")
    spec = PipelineSpec(postgres_to_stream.PIPELINE, config, Run(False, Path("none")))
    found = samples(PipelineMetrics([spec]).scrape())
    assert found["headrace_pipeline_slot_up", "postgres-to-stream"] == 0
    assert found["headrace_pipeline_rows_total", "postgres-to-stream"] == 0
    assert ("headrace_pipeline_slot_active", "postgres-to-stream", "s") not in found


# --- where it is served ---


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9410", ("127.0.0.1", 9410)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:2", ("::1", 2)),
    ],
)
def test_a_port_is_on_loopback_unless_a_host_is_given(text: str, address: tuple[str, int]) -> None:
    assert Address.of(text) == address


@pytest.mark.parametrize("text", ["", "x", ":9410", "127.0.0.1", "1:65536", "9410x"])
def test_what_is_no_address_is_refused_before_spark_starts(text: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["run", "compact", "--metrics-listen", text, "--state", str(tmp_path)]
    )
    assert result.exit_code == 2
    assert "--metrics-listen is PORT or HOST:PORT" in result.output


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with served(Address.of("0"), lambda: b"") as url:
        port = url.rpartition(":")[2].partition("/")[0]
        command = ["run", "compact", "--metrics-listen", port, "--state", str(tmp_path)]
        result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert f"cannot listen on {port} for metrics: Address already in use." in result.output


def test_metrics_answer_under_loopback_names_only() -> None:
    metrics = PipelineMetrics([LONG_PIPELINE])
    with served(Address.of("0"), metrics.scrape) as url, httpx.Client() as http:
        answer = http.get(url)
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert ("headrace_pipeline_up", "archive") in samples(answer.content)
        assert http.get(url, headers={"Host": "rebound.example"}).status_code == 421
        assert http.get(url.replace("/metrics", "/")).status_code == 404


# --- of pipelines that run ---


@pytest.mark.slow
def test_pipelines_that_run_expose_every_metric_that_is_described(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("create table items (id int primary key)")
        connection.execute("insert into items select generate_series(1, 5)")
    with Client(server.url) as client:
        made = client.stream("metrics/in")
        made.create("application/json", data=b'[{"key":"a"},{"key":"b"},[7]]')
    common = {"server": server.url, "postgres": database, "progress": ""}
    into = stream_to_postgres.Config(
        streams=("metrics/in",),
        quarantine="metrics/bad",
        **common,  # type: ignore[arg-type]
    )
    out = postgres_to_stream.Config(stream="metrics/out", **common)  # type: ignore[arg-type]
    specs = [
        PipelineSpec(stream_to_postgres.PIPELINE, into, Run(False, tmp_path / "into")),
        PipelineSpec(postgres_to_stream.PIPELINE, out, Run(False, tmp_path / "out")),
    ]
    metrics, stopping = PipelineMetrics(specs), threading.Event()
    found: dict[tuple[str, ...], float] = {}

    def watch(progress: Progress) -> None:
        metrics.saw(progress)
        scraped = samples(metrics.scrape())
        is_through = all(
            scraped.get(("headrace_pipeline_last_batch_seconds", spec.pipeline.name))
            for spec in specs
        )
        if is_through and not found:
            found.update(scraped)
            stopping.set()

    runs = [PipelineRun(spec, may_begin_again=False) for spec in specs]
    run_all(spark, runs, stopping, watch)
    assert [run.progress.last_error for run in runs] == [None, None]
    assert {name for name, *_ in found if name.startswith("headrace_")} == set(METRICS)
    into_postgres, out_of_it = (spec.pipeline.name for spec in specs)
    assert found["headrace_pipeline_up", into_postgres] == 1
    assert found["headrace_pipeline_rows_total", into_postgres] == 3
    assert found["headrace_pipeline_rows_total", out_of_it] == 5
    assert found["headrace_pipeline_quarantined_total", into_postgres] == 1
    assert found["headrace_pipeline_batch_step_seconds_total", into_postgres, "addBatch"] > 0
    slot = next(key[2] for key in found if key[0] == "headrace_pipeline_slot_active")
    assert found["headrace_pipeline_slot_active", out_of_it, slot] == 1
    assert found["headrace_pipeline_slot_retained_bytes", out_of_it, slot] >= 0
    assert found["headrace_pipeline_slot_limit_bytes", out_of_it, slot] > 0
