"""How the files of a lake table lie: what readers find that look at the files themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace.spark.lake.archives import ArchivedRange, find_archive
from headrace.spark.lake.delta_stats import delta_stats
from headrace.spark.lake.parquet_files import write_files
from headrace.spark.lake.table_commits import DeltaLake, Iceberg, LakeTable

COLUMNS = ("stream", "day", "shard", "offset", "content_type", "value")
SCHEMA = pa.schema([(name, pa.int32() if name == "shard" else pa.string()) for name in COLUMNS])
DAY = "2026-11-18"
KINDS = ("delta", "iceberg")
ODD = ("a/b", "é %20", "x=y", "a:b?#", "b" * 300)


def lake(kind: str, path: Path, *partition_by: str) -> LakeTable:
    return DeltaLake(path, partition_by) if kind == "delta" else Iceberg.at(path, partition_by)


def add(table: LakeTable, batch: int, streams: Sequence[str], shard: int = 0) -> None:
    found = [
        dict(zip(COLUMNS, (name, DAY, shard, f"{n:04}", "text/plain", f"{batch}-{n}"), strict=True))
        for n, name in enumerate(streams)
    ]
    rows = pa.RecordBatch.from_pylist(found, schema=SCHEMA)
    keep = table.keeps_partition_columns
    files = write_files(
        table.data_dir, f"p{batch}", [rows], table.partition_by, keep_partition_columns=keep
    )
    assert table.commit(SCHEMA, "query", batch, files)


def by_files(path: Path) -> list[tuple[Any, ...]]:
    """What DuckDB finds that knows no table format."""
    rows = duckdb.connect().execute(
        "select stream, day::text, shard, value"
        f" from read_parquet('{path}/**/*.parquet') order by all"
    )
    return rows.fetchall()


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_of_the_files_alone_finds_every_column(kind: str, tmp_path: Path) -> None:
    table = lake(kind, tmp_path / "t", "day", "shard")
    add(table, 0, ["a", "b"], shard=3)
    add(table, 1, ["a"], shard=5)
    expected = [("a", DAY, 3, "0-0"), ("a", DAY, 5, "1-0"), ("b", DAY, 3, "0-1")]
    assert by_files(tmp_path / "t") == expected
    directories = {file.parent.relative_to(str(table.data_dir)) for file in _parquet(tmp_path)}
    assert {str(each) for each in directories} == {f"day={DAY}/shard=3", f"day={DAY}/shard=5"}


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_are_merged_lie_where_their_parts_did(kind: str, tmp_path: Path) -> None:
    table = lake(kind, tmp_path / "t", "day", "shard")
    for batch in range(3):
        add(table, batch, ["a", "b"], shard=3)
    archive = find_archive(str(tmp_path / "t"))
    assert archive is not None
    archive.merge_files()
    assert {file.parent.name for file in _parquet(tmp_path)} == {"shard=3"}
    found = archive.streams(archive.version())
    assert {name: len(files) for name, files in found.items()} == {"a": 1, "b": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_of_any_kind_can_be_a_directory(kind: str, tmp_path: Path) -> None:
    """As in tables of earlier versions, which are partitioned by stream."""
    table = lake(kind, tmp_path / "t", "stream", "day")
    add(table, 0, ODD)
    archive = find_archive(str(tmp_path / "t"))
    assert archive is not None
    assert archive.partition_by() == ("stream", "day")
    found = archive.streams(archive.version())
    assert sorted(found) == sorted(ODD)
    for number, name in enumerate(ODD):
        rows = archive.messages(name, found[name], archive.version(), ArchivedRange("", "~"))
        assert rows["value"].to_pylist() == [f"0-{number}"]
    # Longer than a file system's names: such a file lies above the directories.
    assert [str(file.parent) for file in _parquet(tmp_path)].count(str(table.data_dir)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_messages_of_a_stream_come_from_the_files_that_hold_it(kind: str, tmp_path: Path) -> None:
    table = lake(kind, tmp_path / "t", "day", "shard")
    add(table, 0, ["a", "b", "b"], shard=1)
    add(table, 1, ["c"], shard=2)
    archive = find_archive(str(tmp_path / "t"))
    assert archive is not None
    found = archive.streams(archive.version())
    assert {name: len(files) for name, files in found.items()} == {"a": 1, "b": 1, "c": 1}
    rows = archive.messages("b", found["b"], archive.version(), ArchivedRange("", "~"))
    assert sorted(rows["value"].to_pylist()) == ["0-1", "0-2"]


def test_the_log_of_a_delta_table_lets_a_reader_skip_files(tmp_path: Path) -> None:
    table = lake("delta", tmp_path / "t", "day", "shard")
    add(table, 0, ["a", "b"])
    add(table, 1, ["c", "é" * 100])
    delta = DeltaTable(str(tmp_path / "t"))
    stats = delta.get_add_actions(flatten=True)
    columns = pa.table(stats).to_pydict()
    low, high = columns["min.stream"], columns["max.stream"]
    assert sorted(zip(low, high, strict=True))[0] == ("a", "b")
    dataset = delta.to_pyarrow_dataset()
    for stream, files in (("b", 1), ("c", 1), ("é" * 100, 1), ("bb", 0)):
        wanted = pc.field("stream") == stream
        assert len(list(dataset.get_fragments(wanted))) == files
        assert dataset.to_table(filter=wanted).num_rows == files


def test_the_manifests_of_an_iceberg_table_let_a_reader_skip_files(tmp_path: Path) -> None:
    from pyiceberg.expressions import EqualTo

    table = Iceberg.at(tmp_path / "t", ("day", "shard"))
    add(table, 0, ["a", "b"])
    add(table, 1, ["c", "d"])
    with table.opened() as found:
        assert found is not None
        scan = found.scan(EqualTo("stream", "b"))  # type: ignore[arg-type,call-arg]
        assert len(list(scan.plan_files())) == 1


def test_statistics_are_of_what_can_be_compared() -> None:
    at = datetime(2026, 11, 18, 1, 2, 3, 4, tzinfo=UTC)
    table = pa.table(
        {
            "n": [3, None, 1],
            "text": ["b" * 40, "a", None],
            "float": [1.5, 2.5, 0.0],
            "nan": [1.0, float("nan"), 2.0],
            "at": [at, at, None],
            "nested": [[1], [2], None],
            "bytes": [b"x", b"y", None],
            "nothing": pa.array([None, None, None], pa.string()),
            "top": ["x" * 32 + "\U0010ffff" * 2, "x", "x"],
        }
    )
    stats = json.loads(delta_stats(table))
    assert stats["numRecords"] == 3
    assert stats["minValues"] == {
        "n": 1, "text": "a", "float": 0.0, "at": "2026-11-18T01:02:03.000004Z", "top": "x"
    }  # fmt: skip
    assert stats["maxValues"] == {
        "n": 3,
        "text": "b" * 32 + "\U0010ffff",
        "float": 2.5,
        "at": "2026-11-18T01:02:03.000004Z",
    }
    counted = {"n": 1, "text": 1, "float": 0, "nan": 0, "at": 1, "nothing": 3, "bytes": 1, "top": 0}
    assert stats["nullCount"] == counted


def test_row_groups_are_small_enough_to_skip(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"n": list(range(50_000))})
    [file] = write_files(tmp_path, "p", [rows], (), keep_partition_columns=True)
    assert pq.read_metadata(tmp_path / file.name).num_row_groups > 1


def _parquet(path: Path) -> list[Path]:
    return list(path.rglob("*.parquet"))
