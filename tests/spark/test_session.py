"""The session: Java is found, or made, or asked for in a sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from headrace.spark.pipelines.runner import session_conf
from headrace.spark.runtime import jvm_cds
from headrace.spark.runtime.cds_training import train
from headrace.spark.runtime.java import NoJava, find_java_home
from tests.spark.helpers import put

STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def test_java_home_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java_home() == tmp_path


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoJava, match="bin/java"):
        find_java_home()


def test_without_java_the_packaged_one_runs_without_the_module_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    home = find_java_home()
    assert home is not None
    done = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert find_java_home() == home


@pytest.mark.slow
def test_python_runs_on_both_sides_as_this_interpreter(spark: SparkSession) -> None:
    def versions(rows: object) -> list[str]:
        import sys

        return [sys.executable]

    found = spark.sparkContext.parallelize([0], 1).mapPartitions(versions).collect()
    assert found == [os.environ["PYSPARK_PYTHON"]]
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.slow
def test_spark_finds_the_data_sources_and_sql_names_them(
    spark: SparkSession, http: httpx.Client
) -> None:
    """A notebook's session, in which nobody has registered anything."""
    put(http, "found/by-spark", b"1", b"2")
    session = spark.newSession()
    session.sql(
        "create temporary view orders using headrace"
        f" options (url '{http.base_url}', subscribe 'found/by-spark')"
    )
    rows = session.sql("select stream, cast(value as string) as value from orders order by 2")
    assert [tuple(row) for row in rows.collect()] == [
        ("found/by-spark", "1"),
        ("found/by-spark", "2"),
    ]


@pytest.mark.slow
def test_a_query_may_keep_its_state_in_rocksdb(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set(STATE_STORE, ROCKSDB)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"n":1}\n{"n":1}\n{"n":2}\n')
    read = session.readStream.schema("n long").json(str(tmp_path / "in"))
    writer = read.groupBy("n").count().writeStream.format("noop").outputMode("update")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    state = query.recentProgress[-1]["stateOperators"][0]
    assert (state["numRowsTotal"], "rocksdbCommitFlushLatency" in str(state)) == (2, True)


@pytest.mark.slow
def test_a_checkpoint_takes_one_file_a_step(spark: SparkSession, tmp_path: Path) -> None:
    """Hadoop's checksum files would cost processes of their own in every batch."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"n":1}\n')
    read = spark.readStream.schema("n long").json(str(tmp_path / "in"))
    writer = read.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "at"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    for step in ("offsets", "commits"):
        assert [path.name for path in (tmp_path / "at" / step).iterdir()] == ["0"]


@pytest.mark.slow
def test_transform_with_state_keeps_its_state_over_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It needs RocksDB, checksum files and protobuf, in the session that build_session makes."""
    session = spark.newSession()
    session.conf.set(STATE_STORE, ROCKSDB)
    (tmp_path / "in").mkdir()
    seen: list[tuple[int, int]] = []

    def keep(found: DataFrame, batch: int) -> None:
        seen.extend((row.n, row.times) for row in found.collect())

    class Counter(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._count = handle.getValueState("count", "count long")

        def handleInputRows(  # noqa: N802
            self,
            key: Any,
            rows: Iterator[Any],
            timerValues: Any,  # noqa: N803
        ) -> Iterator[Any]:
            (before,) = self._count.get() or (0,)
            count = before + sum(1 for _ in rows)
            self._count.update((count,))
            yield Row(n=key[0], times=count)

        def close(self) -> None:
            pass

    for number, text in enumerate(('{"n":1}\n{"n":1}\n{"n":2}\n', '{"n":1}\n')):
        (tmp_path / "in" / f"{number}.json").write_text(text)
        read = session.readStream.schema("n long").json(str(tmp_path / "in"))
        counted = read.groupBy("n").transformWithState(
            Counter(), "n long, times long", "Update", "None"
        )
        writer = counted.writeStream.foreachBatch(keep).outputMode("update")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert (sorted(seen[:2]), seen[2:]) == ([(1, 2), (2, 1)], [(1, 3)])


def test_only_pipelines_without_rocksdb_go_without_checksum_files() -> None:
    files = "spark.hadoop.fs.file.impl"
    assert files in session_conf({})
    assert files not in session_conf({STATE_STORE: ROCKSDB})
    assert session_conf({files: "own"}) == {files: "own"}


def java_maps(spark: SparkSession) -> str:
    java: Any = spark.sparkContext._jvm
    pid = java.java.lang.ProcessHandle.current().pid()
    return Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not jvm_cds.options(), reason="no archive: headrace pipeline prepare")
def test_java_takes_classes_from_the_archive_where_there_is_one(spark: SparkSession) -> None:
    archive = jvm_cds.make()
    assert str(archive) in java_maps(spark)
    assert str(archive) in jvm_cds.options()


@pytest.mark.slow
def test_what_the_archive_is_made_from_has_rows_for_every_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A query without rows would end before Java has loaded what rows need."""
    train(spark, tmp_path)
    noted = {path.parts[-4] for path in tmp_path.glob("*/checkpoint/commits/0")}
    assert noted == {"rows", "minutes"}


def test_without_an_archive_java_is_told_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jvm_cds.options() == ""
    assert jvm_cds.added_to("-Xmx1g") == "-Xmx1g"


def test_without_a_home_directory_there_is_no_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert jvm_cds.options() == ""


def test_an_archive_of_ones_own_is_kept() -> None:
    own = "-XX:SharedArchiveFile=/own.jsa"
    assert jvm_cds.added_to(own) == own
