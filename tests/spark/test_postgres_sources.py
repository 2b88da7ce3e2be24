"""Postgres as Spark sees it: changes out, rows in, through a real session."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from headrace.client import Client
from headrace.postgres.ledger import SinkError
from headrace.postgres.pgoutput import lsn_number
from headrace.spark.pipelines import pipeline, postgres_to_stream
from headrace.spark.pipelines.base import ConfigError, Run
from headrace.spark.pipelines.runner import explain
from headrace.spark.rewind import rewind
from headrace.testing.server_process import ServerProcess

pytestmark = pytest.mark.slow


def execute(url: str, *queries: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for query in queries:
            connection.execute(query.encode())


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchall()


def drop_last_commit(checkpoint: Path) -> None:
    """What a crash between the last batch's write and its commit leaves behind."""
    last = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    last = checkpoint / "commits" / last.name
    last.unlink(missing_ok=True)
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


class Follower:
    """A query over the change source that keeps what each batch held."""

    def __init__(self, spark: SparkSession, url: str, checkpoint: Path, **options: str) -> None:
        self._spark, self._checkpoint = spark, checkpoint
        self._options = {"url": url, "slot": "spark", "tables": "items"} | options
        self.batches: list[tuple[int, list[tuple[str, int | None]]]] = []
        self._crash_at = ""

    def run(self, crash_at: str = "") -> list[tuple[str, int | None]]:
        """What came. A batch with the operation `crash_at` is kept and not committed."""
        self.batches, self._crash_at = [], crash_at
        reader = self._spark.readStream.format("headrace_postgres_changes")
        query = (
            reader.options(**self._options)
            .load()
            .writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        if crash_at:
            with pytest.raises(StreamingQueryException, match="as if killed"):
                query.awaitTermination(240)
        else:
            assert query.awaitTermination(240)
        return [row for _, batch in self.batches for row in batch]

    def _keep(self, batch: DataFrame, number: int) -> None:
        found = batch.select("op", "value").collect()
        values = [(op, json.loads(value)["id"] if value else None) for op, value in found]
        self.batches.append((number, values))
        if self._crash_at in (op for op, _ in values):
            raise RuntimeError("as if killed")


def test_a_query_reports_how_far_the_log_is_ahead_of_its_last_batch(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    execute(database, "create table items (id int primary key)", "insert into items values (1)")
    query = (
        spark.readStream.format("headrace_postgres_changes")
        .options(url=database, slot="report", tables="items")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)
    assert query.lastProgress is not None
    [source] = query.lastProgress["sources"]
    end, latest = (json.loads(source[name]) for name in ("endOffset", "latestOffset"))
    assert lsn_number(latest["lsn"]) >= lsn_number(end["lsn"]) > 0


def test_changes_come_once_through_restarts_and_a_batch_done_again(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    execute(
        database,
        "create table items (id int primary key, title text)",
        "insert into items values (1, 'a'), (2, 'b')",
    )
    follower = Follower(spark, database, tmp_path, maxChangesPerTrigger="3")
    assert follower.run() == [("snapshot", 1), ("snapshot", 2)]
    execute(
        database,
        "insert into items select n from generate_series(3, 6) n",
        "delete from items where id = 3",
    )
    expected = [("insert", 3), ("insert", 4), ("insert", 5), ("insert", 6), ("delete", None)]
    assert follower.run(crash_at="delete") == expected
    last = follower.batches[-1]
    execute(database, "insert into items values (7)")
    assert follower.run() == [*last[1], ("insert", 7)]
    assert follower.batches[0] == last
    assert follower.run() == []


def test_rows_that_the_server_refuses_go_aside_once_and_the_others_arrive(
    spark: SparkSession, database: str, server: ServerProcess, tmp_path: Path
) -> None:
    deep = "[" * 1100 + "]" * 1100
    execute(
        database,
        "create table items (id text primary key, doc json)",
        f"insert into items values ('a', '1'), ('b', '{deep}'), ('c', '3')",
    )
    config = postgres_to_stream.Config(
        server=server.url,
        postgres=database,
        stream="p2s-aside/{key}",
        quarantine="p2s-aside-bad",
        progress="",
    )

    def run() -> None:
        assert postgres_to_stream.start(spark, config, Run(True, tmp_path)).awaitTermination(120)

    with Client(server.url) as client:
        bad = client.stream("p2s-aside-bad")
        bad.create("application/json")
        bad.close()
        with pytest.raises(StreamingQueryException, match="closed"):
            run()  # the good rows are in, and the batch is not committed
        bad.delete()
        run()
        changes = """('..', '4'), ('d', '"\\ud800"'), ('e', '[1e400]'), ('f', '5')"""
        execute(database, f"insert into items values {changes}")
        run()
        aside = [record["record"]["stream"] for record in bad.read_json()]
        assert aside == [f"p2s-aside/{key}" for key in ("b", "..", "d", "e")]
        for key, doc in (("a", 1), ("c", 3), ("f", 5)):
            found = client.stream(f"p2s-aside/{key}").read_json()
            assert found == [{"id": key, "doc": doc}]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"stream": "a//{table}"}, r"stream: 'a//\{table\}' cannot be a stream"),
        ({"stream": "/x/{key}"}, "'x' is not a bucket id"),
        ({"stream": "bad", "quarantine": "bad"}, "both the stream of items and the quarantine"),
        ({"quarantine": "../bad"}, "quarantine: '../bad' cannot be a stream"),
        (
            {"stream": "{key}", "format": "changes", "on_partitions": "resnapshot"},
            "begins with a reset, which streams of one row each",
        ),
    ],
)
def test_a_configuration_that_would_lose_rows_is_refused(
    spark: SparkSession, tmp_path: Path, given: dict[str, Any], sentence: str
) -> None:
    def start() -> None:
        config = pipeline("postgres-to-stream").configure(given)
        assert isinstance(config, postgres_to_stream.Config)
        postgres_to_stream.start(spark, config, Run(True, tmp_path))

    with pytest.raises(ConfigError, match=sentence):
        start()


class Loader:
    """A query that loads files of JSON lines into a table, one file a batch."""

    def __init__(self, spark: SparkSession, url: str, home: Path, **options: str) -> None:
        self._spark, self._home = spark, home
        self._options = {"url": url, "table": "events"} | options
        self._files = 0
        self.partitions = 0
        (home / "in").mkdir()

    def add(self, *documents: dict[str, Any]) -> None:
        text = "\n".join(json.dumps(document) for document in documents)
        (self._home / "in" / f"{self._files}.json").write_text(text)
        self._files += 1

    def run(self) -> None:
        source = self._spark.readStream.schema("id int, note string, reason string")
        frame = source.option("maxFilesPerTrigger", 1).json(str(self._home / "in"))
        if "reasonColumn" not in self._options:
            frame = frame.drop("reason")
        if self.partitions:
            frame = frame.repartition(self.partitions, "id")
        query = (
            frame.writeStream.format("headrace_postgres")
            .options(**self._options)
            .option("checkpointLocation", str(self._home / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    def repeat_last(self) -> None:
        drop_last_commit(self._home / "checkpoint")
        self.run()


@pytest.mark.parametrize(("exactly_once", "copies"), [("true", 1), ("false", 2)])
def test_a_batch_done_again_is_in_once_and_only_thanks_to_the_ledger(
    spark: SparkSession, database: str, tmp_path: Path, exactly_once: str, copies: int
) -> None:
    execute(database, "create table events (id int, note text)")
    loader = Loader(spark, database, tmp_path, exactlyOnce=exactly_once)
    loader.add({"id": 1, "note": "a"})
    loader.add({"id": 2, "note": None})
    loader.run()
    loader.repeat_last()
    found = rows(database, "select id, note, count(*) from events group by 1, 2 order by 3, 1")
    assert sum(count for _, _, count in found) == 1 + copies
    assert {(id_, note) for id_, note, _ in found} == {(1, "a"), (2, None)}


def test_after_an_older_restore_of_postgres_the_query_is_put_back_to_what_is_in(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    """Spark keeps the plans of a few batches only; the ledger keeps that of the last one."""
    execute(database, "create table events (id int, note text)")
    loader = Loader(spark, database, tmp_path, writer="w")
    checkpoint = tmp_path / "checkpoint"
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    try:
        for number in range(3):
            loader.add({"id": number, "note": "early"})
        loader.run()
        execute(database, "create schema backup", "create table backup.l as table headrace.ledger")
        for number in range(3, 9):
            loader.add({"id": number, "note": "late"})
        loader.run()
        assert not (checkpoint / "offsets" / "2").exists(), "Spark has forgotten the batch"
        execute(
            database,
            "delete from events where id > 1",  # as if batch 2 were in by half
            "delete from events where note = 'late'",
            "delete from headrace.ledger",
            "insert into headrace.ledger select * from backup.l",
        )
        execute(database, "insert into events values (2, 'early')")
        loader.add({"id": 9, "note": "new"})
        with pytest.raises(StreamingQueryException) as refused:
            loader.run()
        command = explain(refused.value).partition("run `python ")[2].partition("`")[0]
        words = command.replace(" URL ", f" {database} ").split()
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
        assert "goes on with batch 2" in done.stdout
        loader.run()
        loader.run()
        assert rows(database, "select id from events order by id") == [(n,) for n in range(10)]
    finally:
        spark.conf.unset("spark.sql.streaming.minBatchesToRetain")


def test_a_checkpoint_is_put_back_only_where_the_ledger_knows_the_plan(
    database: str, tmp_path: Path
) -> None:
    with pytest.raises(SinkError, match="is not a checkpoint of Spark"):
        rewind(tmp_path, database, "w")
    (tmp_path / "metadata").write_text('{"id":"query"}')
    with pytest.raises(SinkError, match="does not say how the last batch"):
        rewind(tmp_path, database, "w")


def test_a_lost_checkpoint_is_a_loud_refusal_when_the_writer_has_a_name(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    execute(database, "create table events (id int, note text)")
    loader = Loader(spark, database, tmp_path, writer="loader")
    loader.add({"id": 1})
    loader.run()
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(Exception, match="another checkpoint"):
        loader.run()
    assert rows(database, "select id from events") == [(1,)]


def test_bad_records_go_aside_once_with_the_reason(
    spark: SparkSession, database: str, server: ServerProcess, tmp_path: Path
) -> None:
    execute(database, "create table events (id int check (id < 100), note text)")
    loader = Loader(
        spark,
        database,
        tmp_path,
        reasonColumn="reason",
        quarantineUrl=server.url,
        quarantineStream="bad-records",
    )
    loader.add({"id": 1}, {"id": 2, "reason": "not wanted"}, {"id": 100}, {"id": 3})
    loader.run()
    loader.repeat_last()
    assert rows(database, "select id from events order by id") == [(1,), (3,)]
    with Client(server.url) as client:
        aside = client.stream("bad-records").read_json()
    assert [bad["record"]["id"] for bad in aside] == [2, 100]
    assert aside[0]["reason"] == "not wanted"
    assert "check constraint" in aside[1]["reason"]


def test_foreach_batch_can_upsert_exactly_once(spark: SparkSession, database: str) -> None:
    execute(database, "create table totals (minute int primary key, n int)")
    frame = spark.createDataFrame([(1, 10), (2, 20)], "minute int, n int").coalesce(1)
    options = {"url": database, "table": "totals", "mode": "upsert", "keys": "minute"}

    def save(batch: int, rows_of_batch: DataFrame) -> None:
        rows_of_batch.write.format("headrace_postgres").mode("append").options(
            **options, writer="totals", batch=str(batch)
        ).save()

    later = frame.selectExpr("minute", "n * 100 as n")
    save(0, frame)
    save(1, later)
    execute(database, "update totals set n = 7 where minute = 1")
    save(1, later)
    assert rows(database, "select * from totals order by 1") == [(1, 7), (2, 2000)]
    save(1, later.repartition(2, "minute"))
    assert rows(database, "select * from totals order by 1") == [(1, 1000), (2, 2000)]


def test_overwriting_a_table_is_refused(spark: SparkSession, database: str, tmp_path: Path) -> None:
    execute(database, "create table events (id bigint)", "insert into events values (7)")
    options = {"url": database, "table": "events"}
    frame = spark.range(2)
    with pytest.raises(Exception, match="replaces no table: write with mode append"):
        frame.write.format("headrace_postgres").mode("overwrite").options(**options).save()
    counted = (
        spark.readStream.format("rate").load().groupBy().count().withColumnRenamed("count", "id")
    )
    query = counted.writeStream.format("headrace_postgres").outputMode("complete")
    with pytest.raises(Exception, match="write with output mode append, or give keys"):
        query.options(**options, checkpointLocation=str(tmp_path)).start().awaitTermination(60)
    assert rows(database, "select id from events") == [(7,)]


def test_a_batch_begun_before_a_restart_goes_on_only_with_the_partitions_it_had(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    xid = "pg_current_xact_id()::text"
    execute(database, f"create table events (id int, note text, xid text default {xid})")
    loader = Loader(spark, database, tmp_path, writer="cut", retrySecs="1")
    loader.partitions = 2
    loader.add(*({"id": number} for number in range(20)))
    loader.run()
    # As if the driver had died when the first of the two was in.
    first = "select xmin::text from headrace.ledger where partition = 0"
    execute(
        database,
        f"delete from events where xid <> ({first})",
        "delete from headrace.ledger where partition = 1",
    )
    before = len(rows(database, "select id from events"))
    assert 0 < before < 20
    for count in (1, 3):
        loader.partitions = count
        with pytest.raises(Exception, match="the same master and cores"):
            loader.repeat_last()
        assert len(rows(database, "select id from events")) == before
    loader.partitions = 2
    loader.run()
    found = rows(database, "select id from events order by id")
    assert found == [(number,) for number in range(20)]


def test_a_first_snapshot_of_wide_rows_fits_into_a_small_heap(
    database: str, tmp_path: Path
) -> None:
    """4,000 rows of 200 kB ended a driver of 1 GiB, for good. Scaled: one batch of all of them
    ends this one, which was tried by giving it 8,000,000,000 bytes per batch."""
    execute(
        database,
        "create table wide (id int primary key, body text)",
        "insert into wide select n, repeat(md5(n::text), 6250) from generate_series(1, 1000) n",
    )
    words = ["-m", "tests.spark.wide_snapshot", database, str(tmp_path), "600m", "67108864"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1000"]
