"""A query does not write on over a hole: its driver notes where the streams it writes to ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from headrace.spark.commit_note import CommitNote
from headrace.spark.driver_notes import DriverNote, NoteError
from headrace.spark.options import OptionError
from headrace.spark.sources.postgres_sink import PostgresSink
from headrace.spark.streams import target_note
from headrace.spark.streams.offset_tracker import StreamProblem
from headrace.spark.streams.stream_writer import StreamWriter, TaskCommit
from tests.conftest import Serve
from tests.http.helpers import client_of
from tests.spark.helpers import post, put, schema_of, shipped, source, stored

_numbers = count()
ROWS = schema_of("stream string, value string")
Write = Callable[..., TaskCommit]


@pytest.fixture
def name() -> str:
    return f"spark/lost/{next(_numbers)}"


class Query:
    """Batches of one checkpoint, each planned, written and committed as Spark does it."""

    def __init__(self, http: httpx.Client, checkpoint: Path, task: TaskContext) -> None:
        self.http, self.checkpoint, self._task = http, checkpoint, task

    def planned(self, **options: Any) -> StreamWriter:
        options = {"checkpointLocation": self.checkpoint, "createStreams": "true"} | options
        writer = source(self.http, **options).streamWriter(ROWS, overwrite=False)
        assert isinstance(writer, StreamWriter)
        return writer

    def task(self, writer: StreamWriter, batch: int, *names: str, partition: int = 0) -> TaskCommit:
        self._task._localProperties = {
            "sql.streaming.queryId": "query", "streaming.sql.batchId": str(batch)
        }  # fmt: skip
        self._task._partitionId = partition
        rows = [{"stream": name, "value": f"[{batch}, {partition}]"} for name in names]
        written = shipped(writer).write(iter([pa.RecordBatch.from_pylist(rows)]))
        assert isinstance(written, TaskCommit)
        return written

    def batch(self, number: int, *names: str, **options: Any) -> None:
        writer = self.planned(**options)
        shipped(writer).commit([self.task(writer, number, *names)], number)


@pytest.fixture
def query(http: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    return Query(http, tmp_path, _task(monkeypatch))


def _task(monkeypatch: pytest.MonkeyPatch) -> TaskContext:
    task = TaskContext()
    monkeypatch.setattr(TaskContext, "_taskContext", task)
    return task


def test_a_stream_deleted_and_created_again_is_not_written_on(query: Query, name: str) -> None:
    query.batch(0, name)
    query.batch(1, name)
    query.http.delete(f"/v1/stream/{name}")
    put(query.http, name, b"1", b"2", b"3")
    with pytest.raises(StreamProblem, match=rf"{name}: .*deleted and created again.*another --st"):
        query.batch(2, name)
    assert stored(query.http, name) == [1, 2, 3]


def test_a_stream_that_is_gone_is_not_created_again(query: Query, name: str) -> None:
    query.batch(0, name)
    query.http.delete(f"/v1/stream/{name}")
    with pytest.raises(StreamProblem, match=r"is not there any more.*delete .*streams\.json"):
        query.batch(1, name)
    assert query.http.get(f"/v1/stream/{name}").status_code == 404
    (query.checkpoint / "streams.json").unlink()
    query.batch(1, name)
    assert stored(query.http, name) == [[1, 0]]


def test_a_stream_that_may_expire_is_written_on_with_a_warning(
    query: Query, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"failOnDataLoss": "false"}
    for batch in (0, 1):
        query.batch(batch, name, **options)
    query.http.delete(f"/v1/stream/{name}")
    for batch in (2, 3):
        query.batch(batch, name, **options)
    assert stored(query.http, name) == [[2, 0], [3, 0]]
    assert caplog.text.count("Continuing, as failOnDataLoss is false") == 1


def test_a_server_in_memory_mode_that_was_restarted_is_not_written_on(
    serve: Serve, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_of(serve()) as before:
        Query(before, tmp_path, _task(monkeypatch)).batch(0, name)
    with client_of(serve()) as after, pytest.raises(StreamProblem, match="in memory mode"):
        Query(after, tmp_path, _task(monkeypatch)).batch(1, name)


def test_a_stream_restored_to_an_earlier_end_is_not_written_on(query: Query, name: str) -> None:
    query.batch(0, name)
    noted = query.checkpoint / "streams.json"
    known = json.loads(noted.read_text())
    post(query.http, name, b"7")
    query.batch(1, name)
    later = json.loads(noted.read_text())
    assert later["streams"][0][2] == known["streams"][0][2] is not None
    later["streams"][0][1] = "0000000000000009_0000000000000099"
    noted.write_text(json.dumps(later))
    with pytest.raises(StreamProblem, match=r"up to 0000000000000009_.* now it ends at 00000"):
        query.batch(2, name)
    assert len(stored(query.http, name)) == 3


def test_a_batch_done_again_and_what_others_append_are_no_loss(query: Query, name: str) -> None:
    for batch in (0, 1, 1):
        query.batch(batch, name)
        post(query.http, name, b'"another\'s"')
    query.batch(2, name, f"{name}/new")
    assert [each for each in stored(query.http, name) if each != "another's"] == [
        [0, 0], [1, 0], [2, 0]
    ]  # fmt: skip


def test_a_server_without_tails_is_asked_stream_by_stream(
    query: Query, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the reference server, which has no such request."""
    from headrace.errors import StreamNotFound
    from headrace.spark.streams.stream_api import StreamApi

    def no_tails(*asked: Any, **options: Any) -> None:
        raise StreamNotFound("__ds/tails")

    monkeypatch.setattr(StreamApi, "tails", no_tails)
    query.batch(0, name)
    query.batch(1, name)
    query.http.delete(f"/v1/stream/{name}")
    with pytest.raises(StreamProblem, match="is not there any more"):
        query.batch(2, name)


def test_a_stream_lost_between_two_tasks_of_a_batch_is_noticed(query: Query, name: str) -> None:
    writer = query.planned()
    first = query.task(writer, 0, name)
    query.http.delete(f"/v1/stream/{name}")
    second = query.task(writer, 0, name, partition=1)
    with pytest.raises(StreamProblem, match="while this batch was written"):
        writer.commit([first, second], 0)
    query.batch(0, name)


def test_the_streams_written_last_are_kept(
    query: Query, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_note, "STREAMS_KEPT", 2)
    query.batch(0, f"{name}/a", f"{name}/b")
    query.batch(1, f"{name}/a")
    query.batch(2, f"{name}/c")
    noted = json.loads((query.checkpoint / "streams.json").read_text())["streams"]
    assert [stream for stream, *_ in noted] == [f"{name}/a", f"{name}/c"]


@pytest.mark.parametrize("checkpoint", ["hdfs://host/state", ""])
def test_a_checkpoint_that_holds_no_note_needs_a_place_for_it(
    query: Query, name: str, checkpoint: str
) -> None:
    with pytest.raises(OptionError, match=r"option committed.*or to none"):
        query.planned(checkpointLocation=checkpoint)
    options = {"url": "postgresql://nowhere", "table": "t", "checkpointLocation": checkpoint}
    with pytest.raises(OptionError, match=r"option committed.*or to none"):
        PostgresSink(options).streamWriter(ROWS, overwrite=False)
    query.batch(0, name, checkpointLocation=checkpoint, committed="none")
    query.batch(1, name, checkpointLocation=checkpoint, committed=query.checkpoint / "note")
    assert (query.checkpoint / "note").is_file()


@pytest.mark.parametrize("text", ["", "[]", '{"streams":'])
def test_a_damaged_note_is_refused(query: Query, name: str, text: str) -> None:
    """A power cut could leave earlier versions an empty one, which switched the check off."""
    query.batch(0, name)
    (query.checkpoint / "streams.json").write_text(text)
    with pytest.raises(NoteError, match=r"streams.json.* is damaged.*delete that file"):
        query.batch(1, name)
    (query.checkpoint / "ledger.json").write_text(text)
    with pytest.raises(NoteError, match=r"ledger.json.* is damaged"):
        CommitNote(DriverNote(query.checkpoint / "ledger.json"), "writer").read()


@pytest.mark.slow
def test_a_query_in_spark_notes_each_batch_and_gives_the_next_one_the_note(
    spark: SparkSession, http: httpx.Client, name: str, tmp_path: Path
) -> None:
    put(http, f"{name}/from", b"1", b"2", b"3")

    def copy() -> str:
        reader = spark.readStream.format("headrace").option("url", str(http.base_url))
        query = (
            reader.option("subscribe", f"{name}/from")
            .option("maxMessagesPerTrigger", "1")
            .load()
            .selectExpr("value")
            .writeStream.format("headrace")
            .option("url", str(http.base_url))
            .option("stream", f"{name}/to")
            .option("createStreams", "true")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.processAllAvailable()
        return str(json.loads((tmp_path / "streams.json").read_text())["streams"][0][1])

    assert copy() == http.head(f"/v1/stream/{name}/to").headers["Stream-Next-Offset"]
    http.delete(f"/v1/stream/{name}/to")
    post(http, f"{name}/from", b"4")
    with pytest.raises(Exception, match="is not there any more"):
        copy()
