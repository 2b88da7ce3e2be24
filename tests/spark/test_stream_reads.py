"""Reading streams as rows, batch and streaming: the data source's classes against a live server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

import httpx
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from headrace.client import ConnectFailed, Unauthorized
from headrace.spark.options import OptionError
from headrace.spark.streams.columns import BadColumn
from headrace.spark.streams.offset_tracker import DataLoss, StreamProblem
from headrace.spark.streams.plan import OffsetRange, StreamPartition, packed, shares
from headrace.spark.streams.stream_reader import StreamReader
from headrace.testing.server_queries import live_readers
from headrace.testing.waiting import eventually
from tests.conftest import Serve
from tests.http.helpers import client_of
from tests.spark.helpers import (
    JSON,
    TEXT_SCHEMA,
    batch_rows,
    next_batch,
    post,
    put,
    read_all,
    same,
    schema_of,
    source,
    stream_reader,
)

_numbers = count()
ANY = ReadAllAvailable()


@pytest.fixture
def name() -> str:
    """A stream that no other test uses."""
    return f"spark/read/{next(_numbers)}"


def values(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["value"] for row in rows]


# -- batch -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content_type", "messages"),
    [
        (JSON, [b'{"a":1}', b'[1, "\xc3\xa9,"]', b"3"]),
        ("text/plain", ["é€".encode(), b"a\r\nb", b","]),
        ("application/octet-stream", [b"\x00\xff", b"x" * 300_000, b"\n"]),
    ],
)
def test_a_row_holds_a_message_exactly_and_the_offset_after_it(
    http: httpx.Client, name: str, content_type: str, messages: list[bytes]
) -> None:
    put(http, name, content_type=content_type)
    bodies = [b"[%b]" % m if content_type == JSON else m for m in messages]
    offsets = [post(http, name, body, content_type) for body in bodies]
    rows = batch_rows(http, subscribe=name)
    assert rows == [
        {"stream": name, "value": m, "offset": o, "content_type": content_type}
        for m, o in zip(messages, offsets, strict=True)
    ]


def test_many_messages_come_in_order_and_once(http: httpx.Client, name: str) -> None:
    put(http, name)
    for first in range(0, 30_000, 10_000):
        body = json.dumps([{"n": n, "pad": "x" * 100} for n in range(first, first + 10_000)])
        post(http, name, body.encode())
    rows = batch_rows(http, TEXT_SCHEMA, subscribe=name)
    assert [json.loads(row["value"])["n"] for row in rows] == list(range(30_000))
    assert [row["offset"] for row in rows] == sorted({row["offset"] for row in rows})


def test_several_streams_are_read_by_name(http: httpx.Client, name: str) -> None:
    names = [f"{name}/{n}" for n in range(5)]
    for number, each in enumerate(names):
        put(http, each, *[b"%d" % number] * (number + 1))
    rows = batch_rows(http, subscribe=",".join(names[1:]))
    assert {row["stream"] for row in rows} == set(names[1:])
    assert len(rows) == 2 + 3 + 4 + 5


def test_an_empty_stream_has_no_rows(http: httpx.Client, name: str) -> None:
    put(http, name)
    assert batch_rows(http, subscribe=name) == []


def test_starting_and_ending_offsets_cut_a_batch_exactly(http: httpx.Client, name: str) -> None:
    put(http, name)
    offsets = [post(http, name, b"%d" % n) for n in range(6)]
    starting, ending = json.dumps({name: offsets[1]}), json.dumps({name: offsets[4]})
    rows = batch_rows(http, subscribe=name, startingOffsets=starting, endingOffsets=ending)
    assert values(rows) == [b"2", b"3", b"4"]
    assert batch_rows(http, subscribe=name, startingOffsets="latest") == []


def test_nothing_can_end_at_the_beginning(http: httpx.Client, name: str) -> None:
    with pytest.raises(OptionError, match="would read nothing"):
        batch_rows(http, subscribe=name, endingOffsets="earliest")


def test_options_of_kafka_are_taken_or_refused_with_what_to_do(http: httpx.Client) -> None:
    reader = stream_reader(http, subscribe="a", maxOffsetsPerTrigger=7)
    assert reader.getDefaultReadLimit() == ReadMaxRows(7)
    with pytest.raises(OptionError, match="mean the same"):
        stream_reader(http, subscribe="a", maxOffsetsPerTrigger=1, maxMessagesPerTrigger=2)
    with pytest.raises(OptionError, match=r"no option 'startingTimestamp': .*startingOffsets"):
        stream_reader(http, subscribe="a", startingTimestamp="0")
    with pytest.raises(OptionError, match=r"'kafka\.bootstrap\.servers': .*url"):
        source(http, **{"kafka.bootstrap.servers": "h:9092"}).writer(TEXT_SCHEMA, overwrite=False)


def test_columns_are_those_asked_for_in_any_order(http: httpx.Client, name: str) -> None:
    put(http, name, b'"\xc3\xa9"')
    schema = schema_of("offset string, value string")
    [row] = batch_rows(http, schema, subscribe=name)
    assert list(row) == ["offset", "value"]
    assert row["value"] == '"é"'


def test_bytes_that_are_not_text_are_refused_as_text(http: httpx.Client, name: str) -> None:
    put(http, name, b"\xff", content_type="application/octet-stream")
    with pytest.raises(BadColumn, match=r"not UTF-8.*Read it as binary"):
        batch_rows(http, TEXT_SCHEMA, subscribe=name)


def test_a_column_that_does_not_exist_is_named(http: httpx.Client, name: str) -> None:
    with pytest.raises(BadColumn, match="no column key string"):
        source(http, subscribe=name).reader(schema_of("key string"))


def test_a_pattern_finds_the_streams_whose_whole_names_match(http: httpx.Client, name: str) -> None:
    for suffix in ("a1", "a2", "b1", "xa1x"):
        put(http, f"{name}/{suffix}", b"1")
    rows = batch_rows(http, subscribePattern=f"{name}/a.")
    assert {row["stream"] for row in rows} == {f"{name}/a1", f"{name}/a2"}
    rows = batch_rows(http, subscribePattern=f"{name}/a.", exclude=f"{name}/a1,{name}/b1")
    assert {row["stream"] for row in rows} == {f"{name}/a2"}


# -- partitions --------------------------------------------------------------------------------


def test_many_streams_are_packed_into_few_partitions(http: httpx.Client, name: str) -> None:
    names = [f"{name}/{n:03d}" for n in range(100)]
    for each in names:
        put(http, each, b"1", b"2")
    reader = source(http, subscribe=",".join(names), maxPartitions=4).reader(TEXT_SCHEMA)
    partitions = reader.partitions()
    assert 1 <= len(partitions) <= 4
    rows = read_all(reader, partitions)
    assert len(rows) == 200
    for each in names:
        assert [row["value"] for row in rows if row["stream"] == each] == ["1", "2"]


def test_a_batch_that_is_planned_again_is_cut_alike_whatever_is_asked_for_now(
    http: httpx.Client, name: str
) -> None:
    names = ",".join(f"{name}/{n}" for n in range(4))
    for each in names.split(","):
        put(http, each, *[b'"%s"' % (b"x" * 900_000)] * 2)

    def plan(reader: StreamReader, end: Any) -> list[list[OffsetRange]]:
        partitions = reader.partitions(reader.initialOffset(), end)
        return [part.spans for part in partitions if isinstance(part, StreamPartition)]

    first = stream_reader(http, subscribe=names, maxPartitions=3)
    end = same(first.latestOffset(first.initialOffset(), first.getDefaultReadLimit()))
    planned = plan(first, end)
    assert len(planned) == 3
    for least, most in ((1, 1), (8, 8)):
        other = stream_reader(http, subscribe=names, minPartitions=least, maxPartitions=most)
        assert plan(other, end) == planned
    del end["partitions"]  # as a checkpoint from before it was kept
    assert len(plan(stream_reader(http, subscribe=names, maxPartitions=1), end)) == 1


def test_a_stream_is_cut_only_for_more_partitions_than_there_are_streams(
    http: httpx.Client, name: str
) -> None:
    put(http, name, *[b'"%d"' % n * 1 for n in range(40)])
    whole = source(http, subscribe=name).reader(TEXT_SCHEMA)
    assert len(whole.partitions()) == 1
    cut = source(http, subscribe=name, minPartitions=4).reader(TEXT_SCHEMA)
    partitions = cut.partitions()
    assert len(partitions) == 4
    found = sorted(int(json.loads(row["value"])) for row in read_all(cut, partitions))
    assert found == list(range(40))


def test_packing_balances_by_weight_and_repeats_itself() -> None:
    spans = [OffsetRange(f"s{n}", "-1", "x", bytes=n * 1_000_000) for n in range(10)]
    first, again = packed(spans, 3), packed(reversed(spans), 3)
    assert [p.spans for p in first] == [p.spans for p in again]
    weights = [sum(span.bytes for span in p.spans) for p in first]
    assert max(weights) - min(weights) <= 5_000_000


def test_a_budget_is_shared_by_what_waits_and_starves_nobody() -> None:
    assert shares({"a": 10, "b": 5}, 100) == {"a": 10, "b": 5}
    assert shares({"a": 900, "b": 100}, 100) == {"a": 90, "b": 10}
    given = shares({"a": 1, "b": 1_000_000}, 10)
    assert given["a"] == 1
    assert sum(given.values()) == 10


# -- streaming ---------------------------------------------------------------------------------


def test_batches_follow_each_other_without_gap_or_overlap(http: httpx.Client, name: str) -> None:
    put(http, name, b"1", b"2")
    reader = stream_reader(http, subscribe=name)
    first, rows = next_batch(reader, same(reader.initialOffset()))
    assert values(rows) == [b"1", b"2"]
    post(http, name, b"3")
    second, rows = next_batch(reader, first)
    assert values(rows) == [b"3"]
    assert second["at"][name] > first["at"][name]


def test_a_planned_batch_does_not_grow_with_the_stream(http: httpx.Client, name: str) -> None:
    put(http, name, b"1")
    reader = stream_reader(http, subscribe=name)
    start = same(reader.initialOffset())
    end = same(reader.latestOffset(start, ANY))
    post(http, name, b"2")
    assert values(read_all(reader, reader.partitions(start, end))) == [b"1"]
    # Planned again by another process, as after a crash: the same rows.
    again = stream_reader(http, subscribe=name)
    assert values(read_all(again, again.partitions(start, end))) == [b"1"]


def test_nothing_new_is_the_start_itself(http: httpx.Client, name: str) -> None:
    put(http, name, b"1")
    reader = stream_reader(http, subscribe=name)
    end, _ = next_batch(reader, same(reader.initialOffset()))
    assert same(reader.latestOffset(end, ANY)) == end


def test_latest_is_decided_once_and_replayed_from_the_first_batch(
    http: httpx.Client, name: str
) -> None:
    put(http, name, b"1")
    reader = stream_reader(http, subscribe=name, startingOffsets="latest")
    start = same(reader.initialOffset())
    post(http, name, b"2")
    assert same(reader.initialOffset()) == start
    end = same(reader.latestOffset(start, ANY))
    post(http, name, b"3")
    # After a crash in the first batch Spark asks a new reader where the query begins, and that
    # one sees a later tail: the end of the batch still says what the batch was.
    again = stream_reader(http, subscribe=name, startingOffsets="latest")
    later = same(again.initialOffset())
    assert later != start
    assert values(read_all(again, again.partitions(later, end))) == [b"2"]


def test_a_bound_by_messages_is_kept_over_several_streams(http: httpx.Client, name: str) -> None:
    names = [f"{name}/{n}" for n in range(3)]
    for number, each in enumerate(names):
        put(http, each, *[b"%d" % n for n in range(10 * (number + 1))])
    reader = stream_reader(http, subscribe=",".join(names), maxMessagesPerTrigger=20)
    assert reader.getDefaultReadLimit() == ReadMaxRows(20)
    start = same(reader.initialOffset())
    reader.prepareForTriggerAvailableNow()
    sizes, rows = [], []
    while True:
        end, found = next_batch(reader, start)
        if end == start:
            break
        sizes.append(len(found))
        rows += found
        start = end
    assert max(sizes) <= 20
    assert len(sizes) == 3
    for number, each in enumerate(names):
        expected = [b"%d" % n for n in range(10 * (number + 1))]
        assert [row["value"] for row in rows if row["stream"] == each] == expected


def test_a_bound_by_bytes_lets_a_larger_message_through_alone(
    http: httpx.Client, name: str
) -> None:
    messages = [b'"%b"' % (b"x" * size) for size in (10, 10, 300_000, 10)]
    put(http, name, *messages)
    reader = stream_reader(http, subscribe=name, maxBytesPerTrigger=40)
    assert reader.getDefaultReadLimit() == ReadMaxBytes(40)
    start, sizes = same(reader.initialOffset()), []
    reader.prepareForTriggerAvailableNow()
    while True:
        end, rows = next_batch(reader, start)
        if end == start:
            break
        sizes.append([len(row["value"]) - 2 for row in rows])
        start = end
    assert sizes == [[10, 10], [300_000], [10]]


def test_a_run_to_what_is_there_ends_there(http: httpx.Client, name: str) -> None:
    put(http, name, b"1")
    reader = stream_reader(http, subscribe=name)
    reader.prepareForTriggerAvailableNow()
    post(http, name, b"2")
    end, rows = next_batch(reader, same(reader.initialOffset()))
    assert values(rows) == [b"1"]
    assert same(reader.latestOffset(end, ANY)) == end


def test_a_minimum_holds_a_batch_back_until_the_delay_is_over(
    http: httpx.Client, name: str
) -> None:
    put(http, name, b"1")
    waiting = stream_reader(http, subscribe=name, minOffsetsPerTrigger=3, maxTriggerDelay="1h")
    start = same(waiting.initialOffset())
    assert same(waiting.latestOffset(start, ANY)) == start
    impatient = stream_reader(http, subscribe=name, minOffsetsPerTrigger=3, maxTriggerDelay="0ms")
    assert len(next_batch(impatient, start)[1]) == 1
    post(http, name, b"[2,3]")
    assert len(next_batch(waiting, start)[1]) == 3


def test_an_idle_reader_waits_at_the_server_and_wakes_with_the_first_message(
    serve: Serve, name: str
) -> None:
    server = serve(DS_SERVER__LONG_POLL_TIMEOUT_SECS="600")
    with client_of(server) as http, ThreadPoolExecutor(1) as pool:
        put(http, name, b"1")
        reader = stream_reader(http, subscribe=name)
        end, _ = next_batch(reader, same(reader.initialOffset()))
        waiting = pool.submit(next_batch, reader, end)
        eventually(lambda: live_readers(http, "long-poll") == 1, "the reader waits")
        post(http, name, b"2")
        assert values(waiting.result()[1]) == [b"2"]


def test_a_new_stream_is_found_while_running_and_read_from_its_beginning(
    serve: Serve, name: str
) -> None:
    server = serve(DS_SERVER__LONG_POLL_TIMEOUT_SECS="600")
    with client_of(server) as http, ThreadPoolExecutor(1) as pool:
        put(http, f"{name}/1", b"1")
        reader = stream_reader(http, subscribePattern=f"{name}/.*", startingOffsets="latest")
        start = same(reader.initialOffset())
        waiting = pool.submit(next_batch, reader, start)
        eventually(lambda: live_readers(http, "long-poll") == 1, "the reader waits")
        put(http, f"{name}/2")
        end, rows = waiting.result()
        if not rows:
            post(http, f"{name}/2", b"[7,8]")
            end, rows = next_batch(reader, end)
        assert [(row["stream"], row["value"]) for row in rows] == [
            (f"{name}/2", b"7"),
            (f"{name}/2", b"8"),
        ]


def test_a_registry_that_was_compacted_meanwhile_is_read_anew(serve: Serve, name: str) -> None:
    server = serve(DS_SERVER__LONG_POLL_TIMEOUT_SECS="0.2")
    with client_of(server) as http:
        put(http, f"{name}/1", b"1")
        reader = stream_reader(http, subscribePattern=f"{name}/.*")
        end, _ = next_batch(reader, same(reader.initialOffset()))
        for number in range(1100):
            http.put(f"/v1/stream/passing/{number}")
            http.delete(f"/v1/stream/passing/{number}")
        put(http, f"{name}/2", b"2")
        assert values(next_batch(reader, end)[1]) == [b"2"]


# -- what goes wrong ---------------------------------------------------------------------------


def test_a_stream_that_is_gone_is_an_error_unless_loss_is_allowed(
    http: httpx.Client, name: str
) -> None:
    put(http, f"{name}/1", b"1")
    put(http, f"{name}/2", b"2")
    names = f"{name}/1,{name}/2"
    http.delete(f"/v1/stream/{name}/1")
    with pytest.raises(DataLoss, match=rf"{name}/1.*failOnDataLoss=false"):
        batch_rows(http, subscribe=names)
    assert values(batch_rows(http, subscribe=names, failOnDataLoss="false")) == [b"2"]


@pytest.mark.parametrize("selector", ["subscribe", "subscribePattern"])
def test_a_stream_deleted_before_it_was_read_to_its_end_is_missed(
    http: httpx.Client, name: str, selector: str
) -> None:
    for which, values in (("a", [b"1", b"2", b"3"]), ("read", [b"1"]), ("empty", [])):
        put(http, f"{name}/{which}", *values)
    names = ",".join(f"{name}/{which}" for which in ("a", "read", "empty"))
    chosen: dict[str, Any] = {selector: names if selector == "subscribe" else f"{name}/.*"}
    reader = stream_reader(http, maxMessagesPerTrigger="3", **chosen)
    end, rows = next_batch(reader, same(reader.initialOffset()))
    assert len(rows) == 3
    if selector == "subscribePattern":
        for which in ("read", "empty"):
            http.delete(f"/v1/stream/{name}/{which}")
        assert len(next_batch(reader, end)[1]) == 1  # of those nothing is missing
    http.delete(f"/v1/stream/{name}/a")
    with pytest.raises(DataLoss, match=f"{name}/a"):
        next_batch(reader, end)


def test_a_stream_deleted_after_planning_is_an_error_that_says_what_is_missing(
    http: httpx.Client, name: str
) -> None:
    put(http, name, b"1")
    reader = source(http, subscribe=name).reader(TEXT_SCHEMA)
    partitions = reader.partitions()
    http.delete(f"/v1/stream/{name}")
    with pytest.raises(DataLoss, match="were planned for this batch"):
        read_all(reader, partitions)


def test_a_server_that_is_away_is_retried_and_then_named(name: str, unused_port: int) -> None:
    away = f"http://127.0.0.1:{unused_port}"
    retries = {"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "1"}
    with httpx.Client(base_url=away) as http:
        reader = source(http, subscribe=name, **retries).reader(TEXT_SCHEMA)
        with pytest.raises(ConnectFailed, match=str(unused_port)):
            reader.partitions()


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port where nobody listens: bound, so that nobody else gets it, and never listened on."""
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "exactly one of"),
        ({"subscribe": "a", "bucket": "b"}, "exactly one of"),
        ({"subscribePattern": "("}, "regular expression"),
        ({"subscribe": "a", "startingOffsets": "soon"}, "startingOffsets"),
        ({"subscribe": "a", "startingOffsets": '{"a": "x"}'}, "startingOffsets"),
        ({"subscribe": "a", "startingOffsets": '{"a": 3}'}, "startingOffsets"),
        ({"subscribe": "a", "maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger"),
        ({"subscribe": "a", "failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"subscribe": "a", "maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"subscribe": "a", "minPartitions": "9", "maxPartitions": "3"}, "maxPartitions"),
        ({"subscribe": "a", "topic": "b"}, "no option 'topic'"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(
    http: httpx.Client, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(OptionError, match=sentence):
        source(http, **options).reader(TEXT_SCHEMA)


def test_options_are_understood_in_any_case(http: httpx.Client, name: str) -> None:
    put(http, name, b"1")
    assert values(batch_rows(http, SUBSCRIBE=name, startingoffsets="earliest")) == [b"1"]


def test_an_offset_for_a_stream_that_is_not_read_is_refused(http: httpx.Client, name: str) -> None:
    put(http, name, b"1")
    starting = json.dumps({"other": "-1"})
    with pytest.raises(StreamProblem, match="other, which is not read"):
        batch_rows(http, subscribe=name, startingOffsets=starting)


class Doorkeeper(BaseHTTPRequestHandler):
    """A proxy that lets nobody in."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(401)
        self.send_header("Content-Length", "18")
        self.end_headers()
        self.wfile.write(b"Jwt is not trusted")

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


def test_a_token_that_is_not_accepted_is_an_error_at_once(name: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Doorkeeper) as door, ThreadPoolExecutor(1) as pool:
        serving = pool.submit(door.serve_forever)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{door.server_port}") as http:
                reader = source(http, subscribe=name, token="revoked").reader(TEXT_SCHEMA)
                with pytest.raises(Unauthorized, match=r"valid token\. Jwt is not trusted"):
                    reader.partitions()
        finally:
            door.shutdown()
            serving.result()
