"""A shape as a change feed: snapshot, live, a shape given up, batches read again alike."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from headrace.postgres.pgoutput import Change
from headrace.spark.options import OptionError, Options
from headrace.spark.shape_feed import ShapeError, ShapeFeed, ShapePosition
from headrace.spark.sources.shapes import NAME, OPTIONS, ShapeReader
from tests.spark.shape_server import ShapeServer

MANY = 1 << 24


@pytest.fixture
def shapes() -> Iterator[ShapeServer]:
    rows: list[dict[str, str | None]] = [
        {"id": str(n), "title": f"t{n}", "ok": "true"} for n in range(3)
    ]
    with ShapeServer(*rows) as server:
        yield server


@pytest.fixture
def feed(shapes: ShapeServer) -> Iterator[ShapeFeed]:
    opened = ShapeFeed(shapes.url, {"table": "items"}, retry_secs=5)
    yield opened
    opened.close()


def told(changes: list[Change]) -> list[tuple[str, str | None]]:
    return [(change.op, change.key) for change in changes]


def test_a_snapshot_comes_first_with_typed_values(feed: ShapeFeed) -> None:
    batch = feed.next_batch(ShapePosition(), rows_max=100, bytes_max=MANY, live=False)
    assert told(batch.changes) == [("snapshot", f'{{"id":{n}}}') for n in range(3)]
    first = batch.changes[0]
    assert first.table == "public.items"
    assert json.loads(first.value or "") == {"id": 0, "title": "t0", "ok": True}
    again = feed.next_batch(batch.end, rows_max=100, bytes_max=MANY, live=False)
    assert (again.changes, again.end) == ([], batch.end)


def test_changes_are_waited_for_and_read_again_alike(shapes: ShapeServer, feed: ShapeFeed) -> None:
    start = feed.next_batch(ShapePosition(), rows_max=100, bytes_max=MANY, live=False).end
    timer = threading.Timer(0.1, shapes.change, ("update", {"id": "1", "title": "new"}, 10))
    timer.start()
    batch = feed.next_batch(start, rows_max=100, bytes_max=MANY, live=True)
    timer.join()
    assert told(batch.changes) == [("update", '{"id":1}')]
    assert batch.changes[0].unchanged == ["ok"]
    shapes.change("delete", {"id": "1"}, 10)
    shapes.change("insert", {"id": "9", "title": None, "ok": "false"}, 11)
    assert feed.reread(start, batch.end) == batch.changes
    rest = feed.next_batch(batch.end, rows_max=100, bytes_max=MANY, live=False)
    assert told(rest.changes) == [("delete", '{"id":1}'), ("insert", '{"id":9}')]


def test_a_shape_given_up_is_a_reset_and_a_new_snapshot(
    shapes: ShapeServer, feed: ShapeFeed
) -> None:
    start = feed.next_batch(ShapePosition(), rows_max=100, bytes_max=MANY, live=False).end
    threading.Timer(0.1, shapes.forget, ({"id": "7", "title": "x", "ok": None},)).start()
    reset = feed.next_batch(start, rows_max=100, bytes_max=MANY, live=True)
    assert told(reset.changes) == [("reset", None)]
    fresh = feed.next_batch(reset.end, rows_max=100, bytes_max=MANY, live=False)
    assert told(fresh.changes) == [("snapshot", '{"id":7}')]
    assert told(feed.reread(start, reset.end)) == [("reset", None)]


def test_batches_end_where_the_limit_is(feed: ShapeFeed) -> None:
    batch = feed.next_batch(ShapePosition(), rows_max=1, bytes_max=MANY, live=False)
    assert len(batch.changes) == 2  # the server's chunk
    rest = feed.next_batch(batch.end, rows_max=1, bytes_max=MANY, live=False)
    assert told(rest.changes) == [("snapshot", '{"id":2}')]


def test_a_consumer_that_cannot_reset_is_refused_a_shape_given_up(shapes: ShapeServer) -> None:
    given = {"url": shapes.url, "table": "items", "onReset": "fail"}
    reader = ShapeReader(Options(NAME, given, OPTIONS))
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))
    reader.stop()
    shapes.forget({"id": "7", "title": "x", "ok": None})
    again = ShapeReader(Options(NAME, given, OPTIONS))
    with pytest.raises(ShapeError, match="deleted ones would live on"):
        again.latestOffset(end, ReadMaxRows(100))
    again.stop()


def test_a_bound_in_bytes_ends_a_batch_with_the_answer_that_reaches_it(shapes: ShapeServer) -> None:
    given = {"url": shapes.url, "table": "items", "maxBytesPerTrigger": "30"}
    reader = ShapeReader(Options(NAME, given, OPTIONS))
    start = reader.initialOffset()
    sizes = []
    for _ in range(2):
        end = reader.latestOffset(start, ReadMaxRows(100))
        (partition,) = reader.partitions(start, end)
        sizes.append(sum(batch.num_rows for batch in reader.read(partition)))
        start = end
    reader.stop()
    assert sizes == [2, 1]


def test_a_server_in_trouble_is_asked_again_and_one_that_stays_away_is_named(
    shapes: ShapeServer, feed: ShapeFeed
) -> None:
    shapes.failures = 2
    assert feed.next_batch(ShapePosition(), rows_max=100, bytes_max=MANY, live=False).changes
    away = ShapeFeed("http://127.0.0.1:1", {"table": "items"}, retry_secs=0.2)
    with pytest.raises(ShapeError, match="is unreachable"):
        away.next_batch(ShapePosition(), rows_max=1, bytes_max=MANY, live=False)
    away.close()


def test_the_reader_plans_reads_and_ends_a_run_at_the_tail(shapes: ShapeServer) -> None:
    reader = ShapeReader(Options(NAME, {"url": shapes.url, "table": "items"}, OPTIONS))
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(100))
    (partition,) = reader.partitions(start, end)
    rows = [row for batch in reader.read(partition) for row in batch.to_pylist()]
    assert [(row["op"], row["committed_at"]) for row in rows] == [("snapshot", None)] * 3
    assert reader.latestOffset(end, ReadMaxRows(100)) == end
    reader.stop()
    other = ShapeReader(Options(NAME, {"url": shapes.url, "table": "items"}, OPTIONS))
    assert len(other.partitions(start, end)) == 1
    other.stop()


def test_a_run_to_the_tail_does_not_end_with_a_reset(shapes: ShapeServer) -> None:
    def run(start: dict[str, str]) -> tuple[dict[str, str], list[str]]:
        reader = ShapeReader(Options(NAME, {"url": shapes.url, "table": "items"}, OPTIONS))
        reader.prepareForTriggerAvailableNow()
        ops: list[str] = []
        while (end := reader.latestOffset(start, ReadMaxRows(100))) != start:
            for partition in reader.partitions(start, end):
                ops += [row["op"] for batch in reader.read(partition) for row in batch.to_pylist()]
            start = end
        reader.stop()
        return start, ops

    at, ops = run(ShapePosition().as_offset())
    assert set(ops) == {"snapshot"}
    shapes.forget({"id": "7", "title": "new", "ok": "true"})
    assert run(at)[1] == ["reset", "snapshot"]


def test_a_missing_table_is_asked_for() -> None:
    with pytest.raises(OptionError, match="table"):
        ShapeReader(Options(NAME, {"url": "http://x"}, OPTIONS))
