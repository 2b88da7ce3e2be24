"""`apply-changes` into a lake from end to end, with kills between a table's commit and the batch's.

What it does with each kind of change is in tests/changes, what its tables do in
test_applied_lake.py.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headrace.client import Client
from headrace.spark.pipelines import apply_changes, compact
from headrace.spark.pipelines.base import ConfigError, Run
from headrace.spark.pipelines.reset import carry_out, plan
from headrace.testing.server_process import ServerProcess
from tests.spark.test_apply_changes import change
from tests.spark.test_pipelines import run_once

pytestmark = pytest.mark.slow


def delta_rows(lake: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        DeltaTable(str(lake / "public" / table)).to_pyarrow_table().to_pylist()
    )
    return found


def iceberg_rows(lake: Path, table: str) -> list[dict[str, Any]]:
    catalog = SqlCatalog("headrace", uri=f"sqlite:///{lake}/catalog.db")
    try:
        found: list[dict[str, Any]] = (
            catalog.load_table(f"public.{table}").scan().to_arrow().to_pylist()
        )
        return found
    finally:
        catalog.engine.dispose()


def test_a_compacted_stream_is_applied_and_what_cannot_be_is_set_aside(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    """Two streams feed one Iceberg table, which has one commit per batch."""
    config = apply_changes.Config(
        server=server.url, bucket="lake-in", quarantine="/lake-in/bad", keys=("id",),
        target="iceberg", lake=str(tmp_path / "lake"), table="all",
    )  # fmt: skip
    with Client(server.url) as client:
        client.bucket("lake-in").create()
        a, b = (client.stream(f"/lake-in/{name}") for name in "ab")
        for stream in (a, b):
            stream.create("application/json")
        a.append_json(*(change(str(n), id=n, n=1) for n in range(20)))
        a.append_json(change("3", "delete"), change("4", id=4, n=2))
        b.append_json(change("100", id=100))
        run_once(spark, apply_changes, config, tmp_path / "state")
        compaction = compact.Config(server=server.url, streams=("/lake-in/b",), messages_min=1)
        run_once(spark, compact, compaction, tmp_path / "compact")
        a.append_json(change("5", "delete"), change("6", id=6, n="six"), change("7", id=7, n=7))
        b.append_json(change("101", id=101, note="new"))
        run_once(spark, apply_changes, config, tmp_path / "state")
        (bad,) = client.stream("/lake-in/bad").read_json()
    found = {row["id"]: (row["n"], row["note"]) for row in iceberg_rows(tmp_path / "lake", "all")}
    kept = {n: (1, None) for n in range(20) if n not in (3, 5)} | {4: (2, None), 7: (7, None)}
    assert found == kept | {100: (None, None), 101: (None, "new")}
    assert 'n: "six" is not a value of the type int64' in bad["reason"]
    assert json.loads(bad["record"]["message"]) == change("6", id=6, n="six")


def test_a_batch_that_was_committed_and_not_noted_is_not_applied_again(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    """History would have it twice. A lost checkpoint is refused for that reason, until a reset."""
    config = apply_changes.Config(
        server=server.url, streams=("once-in-lake",), keys=("id",), scd_type=2,
        target="delta", lake=str(tmp_path / "lake"),
    )  # fmt: skip
    lake, checkpoint = tmp_path / "lake", tmp_path / "state" / "checkpoint"
    expected = [(1, 1, False), (1, 2, True), (2, None, False)]

    def history() -> list[tuple[Any, ...]]:
        rows = delta_rows(lake, "once-in-lake")
        rows.sort(key=lambda row: (row["id"], row["valid_from"]))
        return [(row["id"], row["n"], row["current"]) for row in rows]

    with Client(server.url) as client:
        stream = client.stream("once-in-lake")
        stream.create("application/json")
        stream.append_json(change("1", id=1, n=1), change("1", id=1, n=2), change("2", id=2))
        run_once(spark, apply_changes, config, tmp_path / "state")
        (checkpoint / "commits" / "0").unlink()
        run_once(spark, apply_changes, config, tmp_path / "state")
        stream.append_json(change("2", "delete"))
        run_once(spark, apply_changes, config, tmp_path / "state")
        assert history() == expected
        (checkpoint / "commits" / "1").unlink()
        (checkpoint / "lake-tables" / "1.json").unlink()  # killed before the driver had noted it
        run_once(spark, apply_changes, config, tmp_path / "state")
    assert history() == expected
    with pytest.raises(StreamingQueryException, match="from another checkpoint"):
        run_once(spark, apply_changes, config, tmp_path / "other")
    assert history() == expected
    shutil.rmtree(lake)
    carry_out(plan(config, Run(True, tmp_path / "other")))
    run_once(spark, apply_changes, config, tmp_path / "other")
    assert history() == expected


KILLED = """
import os, signal, sys
from pathlib import Path
from headrace.spark.pipelines import apply_changes
from headrace.spark.pipelines.base import Run
from headrace.spark.session import build_session

def killed(*given):
    os.kill(os.getpid(), signal.SIGKILL)

# The first thing after a batch is written, and before Spark notes it.
apply_changes.MergingOfFiles.after_batch = killed
server, lake, state = sys.argv[1:]
config = apply_changes.Config(
    server=server, streams=("killed-a", "killed-b"), keys=("id",), scd_type=2, target="iceberg",
    lake=lake,
)
apply_changes.start(build_session("killed"), config, Run(True, Path(state))).awaitTermination()
"""


def test_a_driver_killed_between_commit_and_checkpoint_loses_and_repeats_nothing(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    lake, state = tmp_path / "lake", tmp_path / "state"
    config = apply_changes.Config(
        server=server.url, streams=("killed-a", "killed-b"), keys=("id",), scd_type=2,
        target="iceberg", lake=str(lake),
    )  # fmt: skip
    with Client(server.url) as client:
        streams = [client.stream(name) for name in config.streams]
        for stream in streams:
            stream.create("application/json")
            stream.append_json(change("1", id=1, n=1), change("1", id=1, n=2))
        driver = subprocess.run(
            [sys.executable, "-c", KILLED, server.url, str(lake), str(state)],
            capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert driver.returncode == -signal.SIGKILL, driver.stderr
        assert not list((state / "checkpoint" / "commits").glob("[0-9]*"))
        assert [len(iceberg_rows(lake, name)) for name in config.streams] == [2, 2]
        for stream in streams:
            stream.append_json(change("1", id=1, n=3))
        run_once(spark, apply_changes, config, state)
    for name in config.streams:
        rows = sorted(iceberg_rows(lake, name), key=lambda row: row["valid_from"])
        assert [(row["n"], row["current"]) for row in rows] == [(1, False), (2, False), (3, True)]


def test_another_target_needs_another_state(spark: SparkSession, tmp_path: Path) -> None:
    files: dict[Literal["delta", "postgres"], str]
    files = {"delta": "ledger.json", "postgres": "lake-tables"}
    for target, file in files.items():
        checkpoint = tmp_path / target / "checkpoint"
        checkpoint.mkdir(parents=True)
        (checkpoint / file).touch()
        config = apply_changes.Config(target=target, streams=("a",))
        with pytest.raises(ConfigError, match="is of another target than"):
            apply_changes.start(spark, config, Run(True, tmp_path / target))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"target": "parquet"}, "Invalid enum value 'parquet'"),
        ({"target": "delta", "lake": "s3://bucket/lake"}, "scheme s3"),
        ({"target": "delta", "fire_triggers": False}, "fire_triggers is of Postgres"),
    ],
)
def test_a_lake_that_makes_no_sense_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        apply_changes.PIPELINE.configure(settings)
