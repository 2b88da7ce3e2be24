"""What a worker of Spark keeps between tasks, and what it must not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.postgres.ledger import Claim, digest, prepare
from headrace.postgres.sink import SinkResult, SinkTarget, write
from headrace.spark.connection_cache import ReusedConnection
from headrace.spark.runtime import keepalive, worker_daemon
from headrace.spark.runtime.keepalive import keep_alive, kept_alive
from headrace.spark.runtime.workers import is_reused
from headrace.testing.waiting import eventually

pytestmark = pytest.mark.slow

_COLLECT = """
import gc
import headrace.spark.sources.registry
from headrace.spark.runtime.workers import freeze_modules
freeze_modules()
print(gc.get_freeze_count())
"""


@pytest.fixture
def kept(database: str) -> Iterator[ReusedConnection]:
    with psycopg.connect(database) as connection:
        connection.execute("create table events (id int)")
    prepare(database)
    worker = ReusedConnection()
    yield worker
    worker.close()


def put(worker: ReusedConnection, url: str, number: int) -> SinkResult:
    """Batch `number`, which is one row, as a task of this worker writes it."""
    rows = [pa.RecordBatch.from_pydict({"id": pa.array([number], pa.int32())})]
    target = SinkTarget(url, "events", ("id",), origin="ours", retry_secs=60)
    claim = Claim("w", "query", 0, number, f"run-{number}", digest(rows))
    return write(target, claim, rows, connect=worker.connection)


def ids(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("select id from events order by id")]


def backend(worker: ReusedConnection, url: str) -> int:
    with worker.connection(url) as connection:
        return connection.info.backend_pid


def test_tasks_of_one_worker_share_a_session(kept: ReusedConnection, database: str) -> None:
    first = backend(kept, database)
    assert [put(kept, database, number).rows for number in range(3)] == [1, 1, 1]
    assert backend(kept, database) == first
    assert ids(database) == [0, 1, 2]


def test_an_idle_session_keeps_the_origin_from_nobody(
    kept: ReusedConnection, database: str
) -> None:
    other = ReusedConnection()
    try:
        for number in range(4):
            assert put((kept, other)[number % 2], database, number).rows == 1
    finally:
        other.close()
    assert ids(database) == [0, 1, 2, 3]


def test_a_session_that_died_between_tasks_costs_a_retry(
    kept: ReusedConnection, database: str
) -> None:
    put(kept, database, 0)
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("select pg_terminate_backend(%s)", (backend(kept, database),))
    assert put(kept, database, 1).rows == 1
    assert ids(database) == [0, 1]


def test_a_server_that_became_a_standby_is_left_for_the_one_that_writes(
    kept: ReusedConnection, database: str
) -> None:
    with kept.connection(database) as connection:
        connection.execute("set default_transaction_read_only = on")
    assert put(kept, database, 0).rows == 1
    assert ids(database) == [0]


def test_a_session_in_which_something_failed_is_not_kept(
    kept: ReusedConnection, database: str
) -> None:
    first = backend(kept, database)
    with pytest.raises(psycopg.errors.UndefinedTable), kept.connection(database) as connection:
        connection.execute("select * from nowhere")
    assert backend(kept, database) != first


def test_a_session_is_used_by_one_task_at_a_time(kept: ReusedConnection, database: str) -> None:
    with ThreadPoolExecutor(2) as tasks, kept.connection(database) as held:
        other = tasks.submit(backend, kept, database).result(60)
        assert other != held.info.backend_pid


def test_another_database_gets_a_session_of_its_own(kept: ReusedConnection, database: str) -> None:
    backend(kept, database)
    elsewhere = psycopg.conninfo.make_conninfo(database, dbname="postgres")
    with kept.connection(elsewhere) as connection:
        assert connection.info.dbname == "postgres"


@pytest.mark.parametrize("is_worker", [True, False])
def test_only_a_worker_of_spark_takes_its_modules_from_the_collector(is_worker: bool) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    env = kept | ({"SPARK_REUSE_WORKER": "1"} if is_worker else {})
    done = subprocess.run(
        [sys.executable, "-c", _COLLECT], env=env, capture_output=True, check=True, timeout=120
    )
    assert (int(done.stdout) > 10_000) == is_worker


def test_spark_marks_the_workers_it_reuses(spark: SparkSession) -> None:
    """The mark is an internal of Spark."""
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: is_reused()).collect() == [True]


def test_workers_begin_with_what_they_need(spark: SparkSession) -> None:
    """They are forked from a process that has loaded it."""
    for pid in keep_alive(spark):
        above = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        assert worker_daemon.__name__ in Path(f"/proc/{above}/cmdline").read_text()


class WorkerSource(DataSource):
    """A row for each task: the process that it ran in."""

    @classmethod
    def name(cls) -> str:
        return "workers"

    def schema(self) -> str:
        return "pid long"

    def reader(self, schema: StructType) -> DataSourceReader:
        return WorkerReader()


class WorkerReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (os.getpid(),)


def test_what_keeps_workers_awake_runs_where_a_data_source_does(spark: SparkSession) -> None:
    """Spark has several sets of workers; a task of another set would keep the wrong ones."""
    spark.dataSource.register(WorkerSource)
    sources = {row.pid for row in spark.read.format("workers").load().collect()}
    kept = keep_alive(spark)
    assert kept
    assert kept <= sources


def test_workers_are_kept_awake_until_it_ends(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[set[int]] = []
    monkeypatch.setattr(keepalive, "keep_alive", lambda session: found.append(keep_alive(session)))
    with kept_alive(spark, every_secs=0.01):
        eventually(lambda: len(found) > 2, "tasks that keep workers awake")
    for thread in threading.enumerate():
        if thread.name == "keepalive":
            thread.join(60)
            assert not thread.is_alive()
    assert all(found)


def test_executors_that_spark_would_give_back_are_left_alone() -> None:
    session = SimpleNamespace(conf={"spark.dynamicAllocation.enabled": "true"})
    with kept_alive(cast(SparkSession, session), every_secs=0):
        assert not [thread for thread in threading.enumerate() if thread.name == "keepalive"]
