"""Lake tables: the commit of a batch counts once, and what is read is what was written."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from headrace.spark.lake.archives import IcebergArchive, find_archive, small_files
from headrace.spark.lake.files import LakeError, write_files
from headrace.spark.lake.tables import DeltaLake, Iceberg, LakeTable

SCHEMA = pa.schema(
    [
        ("session", pa.string()),
        ("day", pa.date32()),
        ("n", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


def rows(*given: tuple[str, int]) -> pa.RecordBatch:
    documents = [{"session": s, "day": date(2026, 11, 15), "n": n, "at": NOW} for s, n in given]
    return pa.RecordBatch.from_pylist(documents, schema=SCHEMA)


def table_of(kind: str, path: Path, partition_by: tuple[str, ...]) -> LakeTable:
    if kind == "delta":
        return DeltaLake(path, partition_by)
    return Iceberg(path, partition_by, path / "catalog.db", "headrace.events")


def add(table: LakeTable, batch: int, *given: tuple[str, int]) -> bool:
    files = write_files(
        table.data_dir,
        f"part-{batch}",
        [rows(*given)],
        table.partition_by,
        keep_partition_columns=table.keeps_partition_columns,
    )
    return table.commit(SCHEMA, "query", batch, files)


def stored(table: LakeTable) -> list[dict[str, Any]]:
    if isinstance(table, DeltaLake):
        found = DeltaTable(str(table.path)).to_pyarrow_table()
    else:
        assert isinstance(table, Iceberg)
        catalog = table.catalog()
        found = catalog.load_table(table.name).scan().to_arrow()
        catalog.engine.dispose()
    return sorted(found.select(SCHEMA.names).to_pylist(), key=lambda row: row["n"])


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("partition_by", [(), ("session", "day")])
def test_a_batch_counts_once(kind: str, partition_by: tuple[str, ...], tmp_path: Path) -> None:
    table = table_of(kind, tmp_path / "events", partition_by)
    odd = "chat/50%=" + "é" * 40
    assert add(table, 0, ("a", 1), (odd, 2), ("a", 3))
    assert not add(table, 0, ("a", 1), (odd, 2), ("a", 3))
    assert add(table, 1, ("b", 4))
    found = stored(table)
    assert [(row["session"], row["n"]) for row in found] == [("a", 1), (odd, 2), ("a", 3), ("b", 4)]
    assert {(row["day"], row["at"]) for row in found} == {(date(2026, 11, 15), NOW)}


def test_a_file_per_partition_keeps_the_order_of_rows(tmp_path: Path) -> None:
    batches = [rows(("b", 1), ("a", 2)), rows(("b", 3), ("a", 4))]
    files = write_files(tmp_path, "p", batches, ("session",), keep_partition_columns=True)
    assert [(file.partition, file.rows) for file in files] == [(("a",), 2), (("b",), 2)]
    import pyarrow.parquet as pq

    assert [pq.read_table(tmp_path / f.name)["n"].to_pylist() for f in files] == [[2, 4], [1, 3]]


def test_other_partitions_than_the_table_has_are_refused(tmp_path: Path) -> None:
    add(DeltaLake(tmp_path, ("session",)), 0, ("a", 1))
    with pytest.raises(LakeError, match="partitioned by"):
        add(DeltaLake(tmp_path, ("day",)), 1, ("a", 2))


def test_what_is_added_while_files_are_merged_stays_and_old_versions_can_be_read(
    tmp_path: Path,
) -> None:
    lake = Iceberg.at(tmp_path / "events", ("session", "day"))
    for batch in range(3):
        add(lake, batch, ("a", 2 * batch), ("b", 2 * batch + 1))
    archive = find_archive(str(lake.path))
    assert isinstance(archive, IcebergArchive)
    before, version = stored(lake), archive.version()
    catalog = lake.catalog()
    table = catalog.load_table(lake.name)
    parts = small_files(table)
    assert [len(files) for files in parts] == [3, 3]
    add(lake, 3, ("a", 6))
    for files in parts:
        archive.merge(table, files)
    assert [row["n"] for row in stored(lake)] == list(range(7))
    archive.merge_files()
    after = catalog.load_table(lake.name)
    assert len(list(after.scan().plan_files())) == 2
    old = after.scan(snapshot_id=version).to_arrow().select(SCHEMA.names).to_pylist()
    catalog.engine.dispose()
    assert sorted(old, key=lambda row: row["n"]) == before
    assert [row["n"] for row in stored(lake)] == list(range(7))


@pytest.mark.slow
def test_spark_writes_a_table_and_a_batch_done_again_adds_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"session":"a","n":1}\n{"session":"b","n":2}\n')

    def run() -> None:
        frame = spark.readStream.schema("session string, n bigint").json(str(tmp_path / "in"))
        query = (
            frame.writeStream.format("headrace_lake")
            .option("path", str(tmp_path / "events"))
            .option("partitionBy", "session")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    run()
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    run()
    table = DeltaTable(str(tmp_path / "events"))
    assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == [1, 2]
    assert len(list((tmp_path / "events").glob("*.parquet"))) == 2
