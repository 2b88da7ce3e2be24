"""A sink whose disk is full: a sentence that says so, and nothing lost once there is room.

The disks are real and small. Mounting one needs root; tests/postgres/test_sink.py raises the same
error without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headrace.postgres.ledger import Claim, SinkError, prepare
from headrace.postgres.server import PostgresServer
from headrace.postgres.sink import SinkTarget, write
from headrace.spark.lake.parquet_files import LakeError
from headrace.spark.lake.table_commits import DeltaLake
from headrace.spark.sources.lake import Files, LakeStreamWriter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root"),
]


class SmallDisk:
    """A file system of a few hundred kilobytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mount("size=400k,mode=777")

    def _mount(self, options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.path)]
        subprocess.run(command, check=True, capture_output=True)

    def fill(self) -> None:
        with suppress(OSError), (self.path / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def make_room(self) -> None:
        self._mount("remount,size=16m")

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.path)], check=True, capture_output=True)


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    # Not below pytest's own directory, which the account Postgres runs as may not enter.
    home = Path(tempfile.mkdtemp(prefix="headrace-small-"))
    home.chmod(0o755)
    small = SmallDisk(home)
    yield small
    small.unmount()
    shutil.rmtree(home)


def noise(rows: int) -> pa.RecordBatch:
    """Rows of a kilobyte that do not compress."""
    texts = [os.urandom(500).hex() for _ in range(rows)]
    return pa.RecordBatch.from_pydict({"id": pa.array(range(rows), pa.int64()), "note": texts})


def test_a_full_disk_under_postgres(
    postgres: PostgresServer, database: str, disk: SmallDisk
) -> None:
    place = disk.path / "space"
    place.mkdir()
    if postgres.account is not None:
        os.chown(place, *postgres.account)
    name = f"small_{os.getpid()}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"create tablespace {name} location '{place}'".encode())
        connection.execute(f"create table events (id int, note text) tablespace {name}".encode())
    prepare(database)
    claim, rows = Claim("w", "q", 0, 0), [noise(1000)]
    try:
        short = SinkTarget(database, "events", ("id", "note"), retry_secs=0.2)
        with pytest.raises(SinkError, match=r"no room for events: .* Nothing is lost"):
            write(short, claim, rows)
        disk.make_room()
        assert write(short, claim, rows).rows == 1000
        assert write(short, claim, rows).was_in
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("drop table events")
            connection.execute(f"drop tablespace {name}".encode())


SCHEMA = StructType([StructField("id", LongType()), StructField("note", StringType())])


def lake_writer(path: Path) -> LakeStreamWriter:
    return LakeStreamWriter(DeltaLake(path, ()), SCHEMA, None)


def test_a_full_disk_under_a_task_of_the_lake_sink(disk: SmallDisk) -> None:
    path = disk.path / "table"
    with pytest.raises(LakeError, match=r"table has no room\. Nothing of this batch is in"):
        lake_writer(path)._write("query", "part", iter([noise(1000)]))
    assert list(path.iterdir()) == []
    disk.make_room()
    files = lake_writer(path)._write("query", "part", iter([noise(1000)]))
    lake_writer(path).commit([files], 0)
    assert DeltaTable(str(path)).to_pyarrow_table().num_rows == 1000


def test_a_full_disk_under_the_commit_of_the_lake_sink(disk: SmallDisk) -> None:
    path = disk.path / "table"
    writer = lake_writer(path)
    first = writer._write("query", "part", iter([noise(10)]))
    writer.commit([first], 0)
    second = writer._write("query", "part", iter([noise(10)]))
    disk.fill()
    with pytest.raises(LakeError, match="no room"):
        writer.commit([second], 1)
    writer.abort([second], 1)
    assert DeltaTable(str(path)).to_pyarrow_table().num_rows == 10
    disk.make_room()
    again = writer._write("query", "part", iter([noise(10)]))
    writer.commit([again], 1)
    assert DeltaTable(str(path)).to_pyarrow_table().num_rows == 20


def test_an_abort_after_a_commit_that_was_made_removes_nothing(tmp_path: Path) -> None:
    """Spark aborts when a commit raised, and it may have raised after it was made."""
    writer = lake_writer(tmp_path)
    files = writer._write("query", "part", iter([noise(10)]))
    assert isinstance(files, Files)
    writer.commit([files], 0)
    writer.abort([files], 0)
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 10
    unused = writer._write("query", "part", iter([noise(10)]))
    writer.abort([unused], 1)
    assert len(list(tmp_path.glob("*.parquet"))) == 1
