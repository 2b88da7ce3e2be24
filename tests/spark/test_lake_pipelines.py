"""`archive` and `replay`: what goes into the lake comes back as it was."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import httpx
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headrace.spark.lake.parquet_files import write_files
from headrace.spark.lake.table_commits import DeltaLake, Iceberg, LakeTable
from headrace.spark.pipelines import archive, replay
from headrace.spark.pipelines.base import ConfigError, Run
from headrace.spark.pipelines.runner import explain
from tests.spark.helpers import batch_rows, post, put

pytestmark = pytest.mark.slow


def history(chance: random.Random) -> list[dict[str, Any]]:
    """A random session: keyed events with text that needs care."""
    events = []
    for number in range(chance.randrange(1, 40)):
        value = {"text": chance.choice(["", "é\n\u2028", "x" * 3000, '"}],[{"']), "n": number}
        key = f"msg:{chance.randrange(5)}"
        events.append({"key": key, "type": "message", "operation": "set", "value": value})
    return events


def run(module: Any, spark: SparkSession, config: Any, state: Path) -> None:
    assert module.start(spark, config, Run(True, state)).awaitTermination(300)


def values(http: httpx.Client, *streams: str) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for row in batch_rows(http, subscribe=",".join(streams)):
        found.setdefault(row["stream"], []).append(row["value"])
    return found


def files_of(table: Path) -> int:
    if DeltaTable.is_deltatable(str(table)):
        return len(DeltaTable(str(table)).file_uris())
    catalog = Iceberg.at(table).catalog()
    try:
        scan = catalog.load_table(Iceberg.at(table).name).scan()
        return len(list(scan.plan_files()))
    finally:
        catalog.engine.dispose()


def rows_of(table: Path) -> pa.Table:
    if DeltaTable.is_deltatable(str(table)):
        return DeltaTable(str(table)).to_pyarrow_table()
    with Iceberg.at(table).opened() as found:
        assert found is not None
        return found.scan().to_arrow()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_random_histories_come_back_from_the_lake_as_they_were(
    spark: SparkSession, http: httpx.Client, tmp_path: Path, kind: Literal["delta", "iceberg"]
) -> None:
    chance = random.Random(20)
    names = [f"{kind}/session {number}/é%" for number in range(6)]
    for name in names:
        put(http, name)
        for event in history(chance):
            post(http, name, json.dumps(event, ensure_ascii=False).encode())
    more = f"{kind}/bytes"
    put(http, more, *[chance.randbytes(size) for size in (1, 5000, 7)], content_type="a/b")
    table = tmp_path / "table"
    config = archive.Config(
        server=str(http.base_url).rstrip("/"),
        pattern=f"{kind}/.*",
        table=str(table),
        format=kind,
        value="binary",
        shards=3,
        messages_per_batch=40,
    )
    run(archive, spark, config, tmp_path / "archive")
    before = files_of(table)
    post(http, names[0], b'{"late":1}')
    run(archive, spark, config, tmp_path / "archive")
    shards = {crc32(name.encode()) % 3 for name in [*names, more]}
    # One file per shard and day, and the file of the late message.
    assert before > files_of(table) == len(shards) + 1
    assert {str(file.parent.name) for file in table.rglob("*.parquet")} == {
        f"shard={shard}" for shard in shards
    }
    back = replay.Config(server=config.server, table=str(table), to="back/{stream}")
    for _ in range(2):  # the second time finds everything done
        run(replay, spark, back, tmp_path / "replay")
    everything = [*names, more]
    returned = values(http, *(f"back/{name}" for name in everything))
    assert {f"back/{k}": v for k, v in values(http, *everything).items()} == returned
    assert http.head(f"/v1/stream/back/{more}").headers["Content-Type"] == "a/b"


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_of_an_earlier_version_keeps_its_partitions(
    spark: SparkSession, http: httpx.Client, tmp_path: Path, kind: Literal["delta", "iceberg"]
) -> None:
    """It was partitioned by stream and day, its files side by side."""
    name, table = f"older-{kind}", tmp_path / "table"
    put(http, name, b"0", b"1")
    columns = {
        "stream": name,
        "day": "2026-11-01",
        "offset": "1",
        "content_type": "application/json",
    }
    text = pa.schema([(column, pa.string()) for column in [*columns, "value"]])
    old = pa.RecordBatch.from_pylist([{**columns, "stream": f"{name}-gone", "value": "9"}], text)
    lake: LakeTable = Iceberg.at(table, archive.OLD_PARTITIONS)
    if kind == "delta":
        lake = DeltaLake(table, archive.OLD_PARTITIONS)
    keep = lake.keeps_partition_columns
    [file] = write_files(lake.data_dir, "p", [old], lake.partition_by, keep_partition_columns=keep)
    flat = replace(file, name=Path(file.name).name)
    Path(str(lake.data_dir / file.name)).rename(str(lake.data_dir / flat.name))
    assert lake.commit(text, "of an earlier version", 0, [flat])

    config = archive.Config(
        server=str(http.base_url).rstrip("/"), streams=(name,), table=str(table), format=kind
    )
    run(archive, spark, config, tmp_path / "archive")
    found = rows_of(table).sort_by("value")
    assert found["value"].to_pylist() == ["0", "1", "9"]
    assert found["stream"].to_pylist() == [name, name, f"{name}-gone"]
    assert "shard" not in found.column_names
    back = replay.Config(server=config.server, table=str(table), to="back/{stream}")
    run(replay, spark, back, tmp_path / "replay")
    again = values(http, f"back/{name}", f"back/{name}-gone")
    assert again == {f"back/{name}": [b"0", b"1"], f"back/{name}-gone": [b"9"]}


def test_a_stream_that_holds_messages_is_not_replayed_into(
    spark: SparkSession, http: httpx.Client, tmp_path: Path
) -> None:
    put(http, "used/a", b"1")
    server = str(http.base_url).rstrip("/")
    config = archive.Config(server=server, streams=("used/a",), table=str(tmp_path / "table"))
    run(archive, spark, config, tmp_path / "archive")
    back = replay.Config(server=server, table=str(tmp_path / "table"))
    with pytest.raises(ConfigError, match="used/a holds messages already"):
        run(replay, spark, back, tmp_path / "replay")
    missing = replay.Config(server=server, table=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="is not a Delta table and holds no Iceberg"):
        run(replay, spark, missing, tmp_path / "other")


def test_a_replay_that_is_another_needs_another_state(
    spark: SparkSession, http: httpx.Client, tmp_path: Path
) -> None:
    put(http, "course/a", b"1")
    put(http, "course/used", b"2")
    server, table = str(http.base_url).rstrip("/"), str(tmp_path / "table")
    config = archive.Config(server=server, streams=("course/a",), table=table)
    run(archive, spark, config, tmp_path / "archive")

    def replayed(**other: Any) -> None:
        back = replay.Config(server=server, table=table, **{"to": "course/back"} | other)
        run(replay, spark, back, tmp_path / "replay")

    with pytest.raises(ConfigError, match="holds no stream 'course/misspelt'"):
        replayed(streams=("course/misspelt",), to="course/used")
    with pytest.raises(ConfigError, match="course/used holds messages already"):
        replayed(to="course/used")
    replayed()
    replayed()
    changes: tuple[dict[str, Any], ...] = (
        {"to": "course/used"},
        {"streams": ("course/a",)},
        {"producer": "other"},
    )
    for change in changes:
        with pytest.raises(ConfigError, match=f"with another {next(iter(change))}: .*--state"):
            replayed(**change)
    note = tmp_path / "replay" / replay.VERSION_FILE
    for text in ('{"version": 0}', "{"):  # of an earlier version, and a damaged one
        note.write_text(text)
        with pytest.raises(ConfigError, match=r"replay.json was written by an earlier version"):
            replayed()
    assert values(http, "course/back", "course/used") == {
        "course/back": [b"1"],
        "course/used": [b"2"],
    }


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_an_archive_keeps_its_format_its_kind_of_value_and_its_state(
    spark: SparkSession, http: httpx.Client, tmp_path: Path, kind: Literal["delta", "iceberg"]
) -> None:
    name, table = f"kept-{kind}", str(tmp_path / "table")
    put(http, name, b"1")

    def archived(state: str = "archive", **other: Any) -> None:
        told = {"streams": (name,), "format": kind, "table": table} | other
        config = archive.Config(server=str(http.base_url).rstrip("/"), **told)
        run(archive, spark, config, tmp_path / state)

    archived()
    post(http, name, b"2")
    with pytest.raises(StreamingQueryException) as caught:
        archived(value="binary")
    assert "The column value is binary here, and string in the table" in explain(caught.value)
    assert "name another table" in explain(caught.value)
    other = "iceberg" if kind == "delta" else "delta"
    with pytest.raises(StreamingQueryException, match=f"and {other} was asked for"):
        archived(format=other)
    for chosen in ({}, {"pattern": "kept-.*"}):
        with pytest.raises(ConfigError, match=f"holds messages of the stream {name} already"):
            archived("lost", **chosen)
    archived("latest", starting="latest")
    archived("elsewhere", table=str(tmp_path / "other"))
    archived()
    assert sorted(rows_of(Path(table))["value"].to_pylist()) == ["1", "2"]
