"""Lake tables: the commit of a batch counts once, and what is read is what was written."""

from __future__ import annotations

import shutil
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import LongType, StructField, StructType

from headrace.spark.lake.archives import IcebergArchive, find_archive, small_files
from headrace.spark.lake.parquet_files import LakeError, write_files
from headrace.spark.lake.table_commits import DeltaLake, Iceberg, LakeTable
from headrace.spark.options import OptionError
from headrace.spark.pipelines.runner import explain
from headrace.spark.sources.lake import Files, LakeSink

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
    return commit(table, batch, rows(*given))


def commit(table: LakeTable, batch: int, written: pa.RecordBatch) -> bool:
    files = write_files(
        table.data_dir,
        f"part-{batch}",
        [written],
        table.partition_by,
        keep_partition_columns=table.keeps_partition_columns,
    )
    return table.commit(written.schema, "query", batch, files)


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


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("others", [("day",), ("session", "day"), ()])
def test_other_partitions_than_the_table_has_are_refused(
    kind: str, others: tuple[str, ...], tmp_path: Path
) -> None:
    add(table_of(kind, tmp_path, ("session",)), 0, ("a", 1))
    with pytest.raises(LakeError, match="partitioned by"):
        table_of(kind, tmp_path, others).check(SCHEMA)
    with pytest.raises(LakeError, match="partitioned by"):
        add(table_of(kind, tmp_path, others), 1, ("a", 2))


INT_AND_TEXT = pa.schema([("a", pa.int32()), ("b", pa.string())])
REFUSED = {
    "The column a is string here, and int32 in the table": pa.schema(
        [("a", pa.string()), ("b", pa.string())]
    ),
    "The column a is int64 here, and int32 in the table": pa.schema(
        [("a", pa.int64()), ("b", pa.string())]
    ),
    r"The column c \(list of binary\) is not in the table": INT_AND_TEXT.append(
        pa.field("c", pa.list_(pa.binary()))
    ),
    r"The column b \(string\) of the table .* is missing": pa.schema([("a", pa.int32())]),
}


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("message", REFUSED)
def test_rows_of_another_schema_are_refused(kind: str, message: str, tmp_path: Path) -> None:
    table = table_of(kind, tmp_path / "events", ())
    commit(table, 0, pa.RecordBatch.from_pylist([{"a": 1, "b": "x"}], schema=INT_AND_TEXT))
    other = REFUSED[message]
    with pytest.raises(LakeError, match=message):
        table.check(other)
    with pytest.raises(LakeError, match=message):
        commit(table, 1, pa.RecordBatch.from_pylist([], schema=other))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_columns_of_the_same_meaning_are_accepted(kind: str, tmp_path: Path) -> None:
    inner = pa.struct([("x", pa.decimal128(10, 2)), ("y", pa.list_(pa.int8()))])
    fields = [
        pa.field("small", pa.int16()),
        pa.field("text", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("inner", inner),
        pa.field("map", pa.map_(pa.string(), pa.list_(pa.binary()))),
    ]
    row = {"small": 1, "text": "é", "at": NOW, "local": datetime(2026, 11, 15), "map": [("k", [])]}
    table = table_of(kind, tmp_path / "events", ())
    first = pa.schema(fields)
    assert commit(table, 0, pa.RecordBatch.from_pylist([row], schema=first))
    assert commit(table, 1, pa.RecordBatch.from_pylist([row], schema=first))
    table.check(pa.schema([field.with_nullable(True) for field in reversed(fields)]))


def test_a_directory_holds_a_table_of_one_format(tmp_path: Path) -> None:
    add(DeltaLake(tmp_path / "a", ()), 0, ("a", 1))
    add(Iceberg.at(tmp_path / "b"), 0, ("a", 1))
    with pytest.raises(LakeError, match="holds a Delta table, and iceberg was asked for"):
        Iceberg.at(tmp_path / "a").check(SCHEMA)
    with pytest.raises(LakeError, match="holds an Iceberg table, and delta was asked for"):
        DeltaLake(tmp_path / "b", ()).check(SCHEMA)


ODD_PLACES = ["with space", "ü", "v1.0", "100%", "per%20cent", "a?b", "a#b", "a;b", "a:b"]
REFUSED_PLACES = {("delta", "per%20cent"), ("iceberg", "a?b"), ("iceberg", "a#b")}


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("place", ODD_PLACES)
def test_a_directory_may_have_any_name_or_is_refused(kind: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / place / place
    table = DeltaLake(path, ("session",)) if kind == "delta" else Iceberg.at(path, ("session",))
    assert find_archive(str(path)) is None
    if (kind, place) in REFUSED_PLACES:
        with pytest.raises(LakeError, match=rf"cannot hold an? {kind.title()} table: name it"):
            table.check(SCHEMA)
        return
    table.check(SCHEMA)
    add(table, 0, ("a", 1), ("b", 2))
    add(table, 1, ("a", 3))
    archive = find_archive(str(path))
    assert archive is not None
    archive.merge_files()
    assert [row["n"] for row in stored(table)] == [1, 2, 3]
    assert sorted(each.name for each in tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("name", ["events", "a.b.c", "a."])
def test_a_name_in_a_catalog_has_one_namespace(name: str, tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "events"), "tableFormat": "iceberg", "table": name}
    with pytest.raises(OptionError, match="is a namespace and a name"):
        LakeSink(options | {"committed": "none"}).streamWriter(
            StructType([StructField("n", LongType())]), False
        )
    assert not list(tmp_path.iterdir())


def test_a_catalog_without_a_table_is_no_archive(tmp_path: Path) -> None:
    lake = Iceberg.at(tmp_path)
    lake.catalog().engine.dispose()
    assert lake.catalog_file.is_file()
    assert find_archive(str(tmp_path)) is None


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


def query_batch(kind: str, home: Path, batch: int, **options: str) -> None:
    """What the driver does with the files of one batch."""
    given = {"path": str(home / "table"), "tableFormat": kind, "checkpointLocation": str(home)}
    schema = StructType([StructField("n", LongType())])
    writer = LakeSink(given | options).streamWriter(schema, False)
    held = [pa.RecordBatch.from_pydict({"n": pa.array([batch], pa.int64())})]
    place = home / "table" / ("data" if kind == "iceberg" else "")
    files = write_files(place, f"part-{batch}", held, (), keep_partition_columns=False)
    messages: list[WriterCommitMessage | None] = [Files("query", files)]
    try:
        writer.commit(messages, batch)
    except LakeError:
        writer.abort(messages, batch)
        raise


def numbers(kind: str, home: Path) -> list[int]:
    if kind == "delta":
        table = DeltaTable(str(home / "table")).to_pyarrow_table()
    else:
        catalog = Iceberg.at(home / "table").catalog()
        table = catalog.load_table("headrace.table").scan().to_arrow()
        catalog.engine.dispose()
    return sorted(table.column("n").to_pylist())


def roll_back(kind: str, home: Path) -> None:
    if kind == "delta":
        DeltaTable(str(home / "table")).restore(1)  # 0 made it
        return
    catalog = Iceberg.at(home / "table").catalog()
    table = catalog.load_table("headrace.table")
    table.manage_snapshots().rollback_to_snapshot(table.history()[0].snapshot_id).commit()
    catalog.engine.dispose()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("how", ["rolled back", "from a backup", "made anew", "deleted"])
def test_a_query_does_not_add_to_a_table_that_has_lost_its_commits(
    kind: str, how: str, tmp_path: Path
) -> None:
    query_batch(kind, tmp_path, 0)
    table, backup = tmp_path / "table", tmp_path / "backup"
    shutil.copytree(table, backup)
    query_batch(kind, tmp_path, 1)
    query_batch(kind, tmp_path, 2)
    if how == "rolled back":
        roll_back(kind, tmp_path)
    else:
        shutil.rmtree(table)
    if how == "from a backup":
        shutil.copytree(backup, table)
    elif how == "made anew":
        query_batch(kind, tmp_path, 2, committed="none")
    with pytest.raises(LakeError, match=r"committed batch 2 .*now the table.*delete .*lake\.json"):
        query_batch(kind, tmp_path, 3)
    if how == "deleted":
        assert not list(table.rglob("*.parquet"))
    else:
        assert numbers(kind, tmp_path) == [2 if how == "made anew" else 0]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_what_others_do_to_a_table_is_no_loss(kind: str, tmp_path: Path) -> None:
    for batch in (0, 1, 1):
        query_batch(kind, tmp_path, batch)
    query_batch(kind, tmp_path, 7, committed="none")
    if kind == "delta":
        DeltaTable(str(tmp_path / "table")).optimize.compact()
    else:
        archive = find_archive(str(tmp_path / "table"))
        assert isinstance(archive, IcebergArchive)
        archive.merge_files()
    query_batch(kind, tmp_path, 8)
    assert numbers(kind, tmp_path) == [0, 1, 7, 8]


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
    assert len(list((tmp_path / "events").rglob("*.parquet"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_spark_writes_nothing_of_rows_of_another_schema(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    def write(values: str, columns: str) -> None:
        frame = spark.sql(f"select * from values {values} as t({columns})")
        writer = frame.write.format("headrace_lake").mode("append").option("tableFormat", kind)
        writer.option("path", str(tmp_path / "events")).save()

    write("(1, 'x')", "a, b")
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    with pytest.raises(PySparkException) as caught:
        write("('1', 'x')", "a, b")
    assert "LakeError: The column a is string here, and int32 in the table" in explain(caught.value)
    with pytest.raises(PySparkException, match=r"The column c \(int32\) is not in the table"):
        write("(1, 'x', 5)", "a, b, c")
    write("(2, 'y')", "a, b")
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
