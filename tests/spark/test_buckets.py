"""Following a bucket: through its feed, new streams included, at the cost of what changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import httpx
import pytest

from headrace.client.errors import UnexpectedAnswer
from headrace.errors import BucketNotFound
from headrace.protocol.buckets import encode_segment
from headrace.spark.streams.offset_tracker import DataLoss
from headrace.spark.streams.stream_reader import StreamReader
from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import live_readers
from headrace.testing.waiting import eventually
from tests.conftest import Serve
from tests.http.helpers import JSON, client_of
from tests.spark.helpers import (
    TEXT_SCHEMA,
    batch_rows,
    next_batch,
    read_all,
    same,
    source,
    stream_reader,
)

_numbers = count()


@pytest.fixture
def bucket(http: httpx.Client) -> str:
    name = f"spark-{next(_numbers)}"
    assert http.put(f"/{name}").status_code == 201
    return name


def put(http: httpx.Client, path: str, body: bytes = b"") -> None:
    assert http.put(path, headers=JSON, content=body).status_code == 201


def post(http: httpx.Client, path: str, body: bytes) -> None:
    assert http.post(path, headers=JSON, content=body).status_code == 204


def found(rows: list[dict[str, object]]) -> list[tuple[object, object]]:
    return [(row["stream"], row["value"]) for row in rows]


def test_a_bucket_is_read_whole_or_by_prefix(http: httpx.Client, bucket: str) -> None:
    for stream_id in ("user-1", "user-2", "other", "user-é%2F? #"):
        put(http, f"/{bucket}/{encode_segment(stream_id)}", b"[1,2]")
    rows = batch_rows(http, bucket=bucket)
    assert len(rows) == 8
    names = {row["stream"] for row in batch_rows(http, bucket=bucket, prefix="user-")}
    assert f"/{bucket}/other" not in names
    assert len(names) == 3
    rows = batch_rows(http, bucket=bucket, prefix="user-", exclude=f"/{bucket}/user-1")
    assert {row["stream"] for row in rows} == names - {f"/{bucket}/user-1"}


def test_new_streams_arrive_while_the_query_runs(serve: Serve) -> None:
    server = serve(DS_SERVER__LONG_POLL_TIMEOUT_SECS="600")
    with client_of(server) as http, ThreadPoolExecutor(1) as pool:
        http.put("/agents")
        put(http, "/agents/a", b"[1]")
        reader = stream_reader(http, bucket="agents")
        end, rows = next_batch(reader, same(reader.initialOffset()))
        assert found(rows) == [("/agents/a", b"1")]
        waiting = pool.submit(next_batch, reader, end)
        eventually(lambda: live_readers(http, "long-poll") == 1, "the reader waits")
        put(http, "/agents/b", b"[2]")
        end, rows = waiting.result()
        assert found(rows) == [("/agents/b", b"2")]
        post(http, "/agents/a", b"[3]")
        assert found(next_batch(reader, end)[1]) == [("/agents/a", b"3")]


def test_a_restarted_query_goes_on_where_it_was(http: httpx.Client, bucket: str) -> None:
    put(http, f"/{bucket}/a", b"[1]")
    first = stream_reader(http, bucket=bucket)
    end, _ = next_batch(first, same(first.initialOffset()))
    post(http, f"/{bucket}/a", b"[2]")
    put(http, f"/{bucket}/b", b"[3]")
    again = stream_reader(http, bucket=bucket)
    rows = next_batch(again, end)[1]
    assert sorted(found(rows)) == [(f"/{bucket}/a", b"2"), (f"/{bucket}/b", b"3")]


def test_a_deleted_stream_that_was_read_whole_is_no_loss(http: httpx.Client, bucket: str) -> None:
    put(http, f"/{bucket}/a", b"[1]")
    put(http, f"/{bucket}/b")
    reader = stream_reader(http, bucket=bucket)
    end, _ = next_batch(reader, same(reader.initialOffset()))
    http.delete(f"/{bucket}/a")
    post(http, f"/{bucket}/b", b"[2]")
    assert found(next_batch(reader, end)[1]) == [(f"/{bucket}/b", b"2")]


@pytest.mark.parametrize("new", [b"[4]", b"[4,5,6]", b"[4,5,6,7]"])
def test_another_stream_of_the_same_name_is_not_passed_over(
    http: httpx.Client, bucket: str, new: bytes
) -> None:
    path = f"/{bucket}/a"
    put(http, path, b"[1,2,3]")
    reader = stream_reader(http, bucket=bucket)
    end, _ = next_batch(reader, same(reader.initialOffset()))
    http.delete(path)
    put(http, path, new)
    for one in (reader, stream_reader(http, bucket=bucket)):
        with pytest.raises(DataLoss, match=f"{path}: .*created again"):
            next_batch(one, end)


def test_another_stream_is_not_taken_for_one_that_is_read_from_its_tail(
    http: httpx.Client, bucket: str
) -> None:
    path = f"/{bucket}/a"
    put(http, path, b"[1,2,3]")
    reader = stream_reader(http, bucket=bucket, startingOffsets="latest")
    start = same(reader.initialOffset())
    http.delete(path)
    put(http, path, b"[4,5,6,7]")
    with pytest.raises(DataLoss, match=f"{path}: .*created again"):
        next_batch(reader, start)


@pytest.mark.parametrize("new", [b"[7,8,9]", b"[7,8]"])
def test_another_stream_with_a_snapshot_at_its_tail_is_waited_at_where_loss_is_allowed(
    http: httpx.Client, bucket: str, new: bytes
) -> None:
    path = f"/{bucket}/a"
    put(http, path, b"[1,2,3]")
    reader = stream_reader(http, subscribe=path, failOnDataLoss="false")
    end, _ = next_batch(reader, same(reader.initialOffset()))
    http.delete(path)
    put(http, path, new)
    publish(http, path, b"state")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next_batch, reader, end)
        eventually(lambda: live_readers(http, "long-poll") >= 1, "the reader waits")
        post(http, path, b"[10]")
        assert found(waiting.result()[1]) == [(path, b"10")]


def test_a_run_that_takes_what_is_there_ends_where_another_trimmed_stream_does(
    http: httpx.Client, bucket: str
) -> None:
    path = f"/{bucket}/a"
    put(http, path, b"[1,2,3]")
    reader = stream_reader(http, subscribe=path, failOnDataLoss="false")
    end, _ = next_batch(reader, same(reader.initialOffset()))
    post(http, path, b"[4]")
    reader.prepareForTriggerAvailableNow()
    http.delete(path)
    put(http, path, b"[7,8]")
    publish(http, path, b"state")
    post(http, path, b"[9]")
    taken = []
    for _ in range(3):
        end, rows = next_batch(reader, end)
        taken += found(rows)
        post(http, path, b'["too late"]')
    assert taken == [(path, b"9")]


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_snapshot_of_another_stream_is_not_read_for_the_one_that_was_planned(
    http: httpx.Client, bucket: str, has_snapshot: bool
) -> None:
    path = f"/{bucket}/a"
    put(http, path, b"[1,2,3]")
    publish(http, path, b"old")
    options = {"subscribe": path, "fromSnapshot": "true"}
    strict = source(http, **options).reader(TEXT_SCHEMA)
    lenient = source(http, **options, failOnDataLoss="false").reader(TEXT_SCHEMA)
    planned = strict.partitions()
    http.delete(path)
    put(http, path, b"[1,2,3]")
    if has_snapshot:
        publish(http, path, b"new")
    with pytest.raises(DataLoss, match="created again"):
        read_all(strict, planned)
    assert read_all(lenient, planned) == []


def publish(http: httpx.Client, path: str, body: bytes) -> None:
    """A snapshot of everything that the stream holds."""
    tail = http.head(path).headers["Stream-Next-Offset"]
    assert http.put(f"{path}/snapshot/{tail}", content=body, headers=JSON).status_code == 204


def test_a_batch_that_was_trimmed_after_it_was_planned_has_the_snapshot_instead(
    http: httpx.Client, bucket: str
) -> None:
    """A restart repeats the plan: it must not end there for ever, nor leave out the snapshot."""
    path = f"/{bucket}/a"
    put(http, path, b"[1,2]")
    reader = stream_reader(http, subscribe=path, fromSnapshot="true")
    once = source(http, subscribe=path, fromSnapshot="true").reader(TEXT_SCHEMA)
    end, planned = plan(reader, same(reader.initialOffset()))
    planned_once = once.partitions()
    publish(http, path, b"state")
    assert found(read_all(reader, planned)) == [(path, b"state")]
    assert [row["value"] for row in read_all(once, planned_once)] == ["state"]
    post(http, path, b"[3]")
    later, planned = plan(reader, end)
    assert found(read_all(reader, planned)) == [(path, b"3")]
    post(http, path, b"[4]")
    publish(http, path, b"newer")
    assert read_all(reader, planned) == [], "the snapshot is behind the end of the batch"
    with pytest.raises(DataLoss, match="trimmed"):
        read_all(once, planned_once)  # no batch follows
    later, planned = plan(reader, later)
    publish(http, path, b"newest")
    assert found(read_all(reader, planned)) == [(path, b"newest")]


def plan(reader: StreamReader, start: Any) -> tuple[Any, Any]:
    """The end of the next batch, and its partitions."""
    end = same(reader.latestOffset(start, reader.getDefaultReadLimit()))
    return end, reader.partitions(start, end)


def test_a_bucket_that_does_not_exist_is_named(http: httpx.Client) -> None:
    with pytest.raises((BucketNotFound, UnexpectedAnswer), match="no-such-bucket"):
        batch_rows(http, bucket="no-such-bucket")


@pytest.mark.slow
def test_ten_thousand_streams_are_followed_by_one_reader_for_what_changes(serve: Serve) -> None:
    server = serve(DS_SERVER__LONG_POLL_TIMEOUT_SECS="600")
    with client_of(server) as http, ThreadPoolExecutor(1) as pool:
        http.put("/agents")
        create_all(server, [f"/agents/{number:05d}" for number in range(10_000)])
        for number in range(50):
            post(http, f"/agents/{number:05d}", b"[%d]" % number)
        reader = stream_reader(http, bucket="agents", maxPartitions=2)
        end, rows = next_batch(reader, same(reader.initialOffset()))
        assert len(rows) == 50
        waiting = pool.submit(next_batch, reader, end)
        eventually(lambda: live_readers(http, "long-poll") == 1, "the reader waits")
        before = requests_answered(http)
        post(http, "/agents/07777", b"[1]")
        end, rows = waiting.result()
        assert found(rows) == [("/agents/07777", b"1")]
        # The append, the feed, a tail, a range; and what this test itself asks.
        assert requests_answered(http) - before < 10
        waiting = pool.submit(next_batch, reader, end)
        eventually(lambda: live_readers(http, "long-poll") == 1, "the reader waits again")
        before = requests_answered(http)
        put(http, "/agents/new", b"[2]")
        assert found(waiting.result()[1]) == [("/agents/new", b"2")]
        assert requests_answered(http) - before < 10


def create_all(server: ServerProcess, paths: list[str]) -> None:
    """Empty JSON streams, pipelined: one by one would take most of the test's time."""
    with RawConnection(server.port) as connection:
        for first in range(0, len(paths), 100):
            some = paths[first : first + 100]
            fields = {"Content_Type": "application/json", "Content_Length": "0"}
            connection.send(b"".join(request_bytes("PUT", path, b"", **fields) for path in some))
            for _ in some:
                assert connection.response().status == 201


def requests_answered(http: httpx.Client) -> float:
    names = ("append", "read", "long-poll", "tails", "list")
    total = 0.0
    for line in http.get("/metrics").text.splitlines():
        if line.startswith("headrace_requests_total{"):
            name, _, value = line.rpartition(" ")
            if any(f'operation="{each}"' in name for each in names):
                total += float(value)
    return total


def trimmed(http: httpx.Client, bucket: str) -> str:
    """A stream whose first two messages only its snapshot knows; their offset."""
    put(http, f"/{bucket}/a", b"[1,2]")
    offset = str(http.head(f"/{bucket}/a").headers["Stream-Next-Offset"])
    answer = http.put(
        f"/{bucket}/a/snapshot/{offset}", content=b"sum: 3", headers={"Content-Type": "text/plain"}
    )
    assert answer.status_code == 204, answer.text
    post(http, f"/{bucket}/a", b"[4]")
    return offset


def test_a_trimmed_stream_is_an_error_that_names_both_ways_out(
    http: httpx.Client, bucket: str
) -> None:
    trimmed(http, bucket)
    with pytest.raises(DataLoss, match=r"failOnDataLoss=false.*fromSnapshot=true"):
        batch_rows(http, bucket=bucket)
    rows = batch_rows(http, bucket=bucket, failOnDataLoss="false")
    assert found(rows) == [(f"/{bucket}/a", b"4")]


def test_a_trimmed_stream_begins_with_its_snapshot_where_that_is_asked_for(
    http: httpx.Client, bucket: str
) -> None:
    offset = trimmed(http, bucket)
    first, second = batch_rows(http, bucket=bucket, fromSnapshot="true")
    assert (first["value"], first["content_type"], first["offset"]) == (
        b"sum: 3",
        "text/plain",
        offset,
    )
    assert (second["value"], second["content_type"]) == (b"4", "application/json")


def test_a_stream_trimmed_under_a_running_query_goes_on_with_its_snapshot(
    http: httpx.Client, bucket: str
) -> None:
    put(http, f"/{bucket}/a", b"[0]")
    readers = [
        stream_reader(http, bucket=bucket, fromSnapshot="true"),
        stream_reader(http, bucket=bucket),
    ]
    ends = [next_batch(reader, same(reader.initialOffset()))[0] for reader in readers]
    post(http, f"/{bucket}/a", b"[1]")
    offset = http.head(f"/{bucket}/a").headers["Stream-Next-Offset"]
    http.put(f"/{bucket}/a/snapshot/{offset}", content=b"state")
    post(http, f"/{bucket}/a", b"[2]")
    rows = next_batch(readers[0], ends[0])[1]
    assert [row["value"] for row in rows] == [b"state", b"2"]
    with pytest.raises(DataLoss, match="trimmed"):
        next_batch(readers[1], ends[1])
