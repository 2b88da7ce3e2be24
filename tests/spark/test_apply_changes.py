"""`apply-changes` from end to end; what it does with each kind of change is in tests/postgres."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headrace.client import Client
from headrace.postgres.server import PostgresServer
from headrace.spark.pipelines import apply_changes, compact, postgres_to_stream
from headrace.spark.pipelines.base import ConfigError, ConfigFile, Run
from headrace.spark.pipelines.reset import carry_out, plan
from headrace.testing.server_process import ServerProcess
from tests.conftest import Serve
from tests.spark.test_pipelines import execute, rows, run_once

pytestmark = pytest.mark.slow

DOCUMENTED = Path("docs/pipelines.md").read_text("utf-8")


@pytest.fixture
def target(postgres: PostgresServer, database: str) -> Iterator[str]:
    name = f"{database.rpartition('/')[2]}_mirror"
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(f"create database {name}".encode())
        yield postgres.url_of(name)
        admin.execute(f"drop database {name} with (force)".encode())


def change(key: str, operation: str = "upsert", **value: Any) -> dict[str, Any]:
    return {"type": "t", "key": key, "value": value, "headers": {"operation": operation}}


def test_a_compacted_stream_is_applied_and_what_cannot_be_is_set_aside(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    execute(database, "create table a (id int primary key, n int)", "create table b (id text)")
    config = apply_changes.Config(
        server=server.url, bucket="applied", postgres=database, quarantine="/applied/bad"
    )
    with Client(server.url) as client:
        client.bucket("applied").create()
        a, b = (client.stream(f"/applied/{name}") for name in "ab")
        for stream in (a, b):
            stream.create("application/json")
        a.append_json(*(change(str(n), id=n, n=1) for n in range(20)))
        a.append_json(change("3", "delete"), change("4", id=4, n=2))
        b.append_json(change("x", id="x"))
        compaction = compact.Config(server=server.url, streams=("/applied/a",), messages_min=1)
        run_once(spark, compact, compaction, tmp_path / "compact")
        a.append_json(change("5", "delete"), change("6", id=6, n="six"), change("7", id=7, n=7))
        run_once(spark, apply_changes, config, tmp_path / "state")
        a.append_json(change("7", id=7, n=8))
        run_once(spark, apply_changes, config, tmp_path / "state")
        (bad,) = client.stream("/applied/bad").read_json()
    found = rows(database, "select id, n from a order by id")
    kept = {n: 1 for n in range(20) if n not in (3, 5)} | {4: 2, 7: 8}
    assert found == list(kept.items())
    assert rows(database, "select * from b") == [("x",)]
    assert "invalid input syntax for type integer" in bad["reason"]
    assert json.loads(bad["record"]["message"]) == change("6", id=6, n="six")
    assert bad["record"]["stream"] == "/applied/a"


def test_a_batch_that_was_applied_and_not_noted_is_not_applied_again(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    """History would have it twice. A lost checkpoint is refused for that reason, until a reset."""
    config = apply_changes.Config(
        server=server.url, streams=("applied-once",), postgres=database, keys=("id",), scd_type=2
    )
    with Client(server.url) as client:
        stream = client.stream("applied-once")
        stream.create("application/json")
        stream.append_json(change("1", id=1, n=1), change("1", id=1, n=2), change("2", id=2))
        run_once(spark, apply_changes, config, tmp_path / "state")
        (tmp_path / "state" / "checkpoint" / "commits" / "0").unlink()
        run_once(spark, apply_changes, config, tmp_path / "state")
        stream.append_json(change("2", "delete"))
        run_once(spark, apply_changes, config, tmp_path / "state")
    history = 'select id, n, current from "applied-once" order by id, valid_from'
    expected = [(1, 1, False), (1, 2, True), (2, None, False)]
    assert rows(database, history) == expected
    with pytest.raises(StreamingQueryException, match="from another checkpoint"):
        run_once(spark, apply_changes, config, tmp_path / "other")
    assert rows(database, history) == expected
    execute(database, 'truncate "applied-once"')
    carry_out(plan(config, Run(True, tmp_path / "other"), checkpoint_lost=True))
    run_once(spark, apply_changes, config, tmp_path / "other")
    assert rows(database, history) == expected


def test_the_documented_mirror_fills_an_empty_database(
    spark: SparkSession,
    serve: Serve,
    database: str,
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables with a key, with several columns as a key in another order, and without one."""
    execute(
        database,
        "create table items (id int primary key, title text not null, at timestamptz)",
        "create table orders (n numeric(9,2), region text, no int, primary key (no, region))",
        "create table notes (a int, b text); alter table notes replica identity full",
        "create table none (id uuid primary key)",
        "insert into items select n, 'item ' || n, now() from generate_series(1, 20) n",
        "insert into orders select n / 3.0, 'r/' || n % 3, n from generate_series(1, 20) n",
        "insert into notes values (1, null), (null, 'b')",
    )
    (text,) = re.findall(r"```toml\n(\[postgres-to-stream\].*?)```", DOCUMENTED, re.DOTALL)
    monkeypatch.setenv("SOURCE_URL", database)
    monkeypatch.setenv("TARGET_URL", target)
    (tmp_path / "mirror.toml").write_text(text)
    file = ConfigFile.read(tmp_path / "mirror.toml")
    server = serve()
    out = msgspec.structs.replace(
        file.of(postgres_to_stream.PIPELINE),
        server=server.url, tables=("items", "orders", "notes", "none"), changes_per_batch=15,
    )  # fmt: skip
    into = msgspec.structs.replace(file.of(apply_changes.PIPELINE), server=server.url)
    for statement in ("select 1", "delete from orders where no = 4; delete from notes where a = 1"):
        execute(database, statement)
        run_once(spark, postgres_to_stream, out, tmp_path / "out")
        run_once(spark, apply_changes, into, tmp_path / "into")
        for table in ("items", "orders", "notes", "none"):
            query = f"select to_jsonb(t)::text from {table} t order by 1"
            assert rows(target, query) == rows(database, query), table
    keys = "select pg_get_constraintdef(oid) from pg_constraint where contype = 'p' and"
    assert rows(target, f"{keys} conrelid = 'orders'::regclass") == [("PRIMARY KEY (region, no)",)]
    assert rows(target, f"{keys} conrelid = 'notes'::regclass") == []


def test_history_has_the_times_at_which_postgres_committed(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    execute(
        database,
        "create table items (id int primary key, at timestamptz)",
        'create table "items-history" (id int, at timestamptz, valid_from timestamptz,'
        " valid_to timestamptz, current boolean, primary key (id, valid_from))",
    )
    out = postgres_to_stream.Config(
        server=server.url, postgres=database, slot="times", stream="items-history",
        format="changes", timestamps=True,
    )  # fmt: skip
    into = apply_changes.Config(
        server=server.url, streams=("items-history",), postgres=database, scd_type=2
    )
    run_once(spark, postgres_to_stream, out, tmp_path / "out")
    execute(
        database,
        "insert into items values (1, now())",
        "update items set at = now()",
        "truncate items",
    )
    run_once(spark, postgres_to_stream, out, tmp_path / "out")
    run_once(spark, apply_changes, into, tmp_path / "into")
    times = rows(
        database,
        "select extract(epoch from valid_from - at) between 0 and 5, valid_to > valid_from,"
        ' current from "items-history"',
    )
    assert times == 2 * [(True, True, False)]
    (order,) = rows(
        database, 'select count(distinct valid_from) from "items-history" where valid_from > at'
    )
    assert order == (2,)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"table": "{topic}"}, "may contain {stream}"),
        ({"partitions": 0}, "partitions must be 1 or more"),
        ({"quarantine": "a", "streams": ["a"]}, "both read and the quarantine stream"),
        ({"quarantine": "a,b"}, "has a comma"),
        ({"scd_type": 3}, "Invalid enum value 3"),
        ({"new_columns": "drop"}, "Invalid enum value 'drop'"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        apply_changes.PIPELINE.configure(settings)
