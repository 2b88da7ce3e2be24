"""A stream that is deleted and created again under a query is another stream, however long."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import httpx
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headrace.client.range_reads import FramedChunk, Tail
from headrace.spark.streams.offset_tracker import DataLoss
from headrace.spark.streams.stream_api import StreamApi
from headrace.testing.server_queries import live_readers
from headrace.testing.waiting import eventually
from tests.conftest import Serve
from tests.http.helpers import client_of
from tests.spark.helpers import (
    TEXT_SCHEMA,
    next_batch,
    post,
    put,
    read_all,
    same,
    source,
    stream_reader,
)

_numbers = count()
AGAIN = "deleted and created again"
OLD = (b"1", b"2", b"3")
SHORTER, EQUAL, LONGER = (b"4",), (b"4", b"5", b"6"), (b"4", b"5", b"6", b"7")


@pytest.fixture
def name() -> str:
    return f"spark/replaced/{next(_numbers)}"


def replace(http: httpx.Client, name: str, *messages: bytes) -> None:
    http.delete(f"/v1/stream/{name}").raise_for_status()
    put(http, name, *messages)


def values(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["value"] for row in rows]


@pytest.mark.parametrize("new", [SHORTER, EQUAL, LONGER])
def test_it_is_missed_by_the_query_and_by_one_that_goes_on_from_its_checkpoint(
    http: httpx.Client, name: str, new: tuple[bytes, ...]
) -> None:
    put(http, name, *OLD)
    reader = stream_reader(http, subscribe=name)
    end, _ = next_batch(reader, same(reader.initialOffset()))
    replace(http, name, *new)
    for one in (reader, stream_reader(http, subscribe=name)):
        with pytest.raises(DataLoss, match=f"{name}: .*{AGAIN}.*failOnDataLoss=false"):
            next_batch(one, end)


@pytest.mark.parametrize("new", [SHORTER, EQUAL, LONGER])
def test_where_loss_is_allowed_the_new_one_is_read_from_its_beginning_and_on(
    http: httpx.Client, name: str, new: tuple[bytes, ...]
) -> None:
    put(http, name, *OLD)
    reader = stream_reader(http, subscribe=name, failOnDataLoss="false")
    first, _ = next_batch(reader, same(reader.initialOffset()))
    replace(http, name, *new)
    end, rows = next_batch(reader, first)
    assert values(rows) == list(new)
    post(http, name, b"8")
    assert values(next_batch(reader, end)[1]) == [b"8"]
    again = stream_reader(http, subscribe=name, failOnDataLoss="false")
    assert values(read_all(again, again.partitions(first, end))) == list(new)


def test_an_empty_one_is_waited_at(serve: Serve, name: str) -> None:
    server = serve(DS_SERVER__LONG_POLL_TIMEOUT_SECS="600")
    with client_of(server) as http, ThreadPoolExecutor(1) as pool:
        put(http, name, *OLD)
        reader = stream_reader(http, subscribe=name, failOnDataLoss="false")
        end, _ = next_batch(reader, same(reader.initialOffset()))
        replace(http, name)
        waiting = pool.submit(next_batch, reader, end)
        eventually(lambda: live_readers(http, "long-poll") == 1, "the reader waits")
        post(http, name, b"4")
        assert values(waiting.result()[1]) == [b"4"]


@pytest.mark.parametrize("new", [SHORTER, EQUAL, LONGER])
def test_one_replaced_between_planning_and_reading_is_not_read_as_the_other(
    http: httpx.Client, name: str, new: tuple[bytes, ...]
) -> None:
    put(http, name, *OLD)
    strict = source(http, subscribe=name).reader(TEXT_SCHEMA)
    lenient = source(http, subscribe=name, failOnDataLoss="false").reader(TEXT_SCHEMA)
    planned = strict.partitions()
    replace(http, name, *new)
    with pytest.raises(DataLoss, match=f"{AGAIN}.*were planned for this batch"):
        read_all(strict, planned)
    assert read_all(lenient, planned) == []


@pytest.mark.parametrize("restarted", [False, True])
def test_one_that_was_not_read_yet_is_missed_by_a_query_from_the_tail(
    http: httpx.Client, name: str, restarted: bool
) -> None:
    put(http, f"{name}/a", *OLD)
    put(http, f"{name}/b", *OLD)
    both = f"{name}/a,{name}/b"
    reader = stream_reader(http, subscribe=both, startingOffsets="latest")
    start = same(reader.initialOffset())
    post(http, f"{name}/b", b"4")
    end, _ = next_batch(reader, start)
    replace(http, f"{name}/a", *LONGER)
    if restarted:
        reader = stream_reader(http, subscribe=both)
    with pytest.raises(DataLoss, match=AGAIN):
        next_batch(reader, end)


def test_one_that_was_seen_and_not_read_is_missed(http: httpx.Client, name: str) -> None:
    put(http, f"{name}/a", *OLD)
    reader = stream_reader(http, subscribePattern=f"{name}/.*")
    start = same(reader.initialOffset())
    reader.latestOffset(start, ReadAllAvailable())
    replace(http, f"{name}/a", *LONGER)
    with pytest.raises(DataLoss, match=f"{name}/a: .*{AGAIN}"):
        next_batch(reader, start)


def test_one_replaced_before_the_first_batch_of_a_query_from_the_tail_is_missed(
    http: httpx.Client, name: str
) -> None:
    put(http, name, *OLD)
    reader = stream_reader(http, subscribe=name, startingOffsets="latest")
    start = same(reader.initialOffset())
    replace(http, name, *LONGER)
    with pytest.raises(DataLoss, match=AGAIN):
        next_batch(reader, start)


def test_a_checkpoint_that_does_not_say_when_its_streams_were_created_is_gone_on_from(
    http: httpx.Client, name: str
) -> None:
    put(http, name, *OLD)
    reader = stream_reader(http, subscribe=name)
    end, _ = next_batch(reader, same(reader.initialOffset()))
    del end["created"]
    post(http, name, b"4")
    assert values(next_batch(stream_reader(http, subscribe=name), end)[1]) == [b"4"]


def test_a_run_that_takes_what_is_there_takes_what_is_there_of_the_new_one(
    http: httpx.Client, name: str
) -> None:
    put(http, name, b"11")
    reader = stream_reader(http, subscribe=name, failOnDataLoss="false", maxMessagesPerTrigger="1")
    end, _ = next_batch(reader, same(reader.initialOffset()))
    post(http, name, b"22")
    reader.prepareForTriggerAvailableNow()
    replace(http, name, b"33333", b"44444")
    taken = []
    for _ in range(3):
        end, rows = next_batch(reader, end)
        taken += values(rows)
        post(http, name, b'"too late"')
    assert taken == [b"33333", b"44444"]


def test_a_run_that_takes_what_is_there_misses_one_of_equal_length(
    http: httpx.Client, name: str
) -> None:
    put(http, name, *OLD)
    reader = stream_reader(http, subscribe=name)
    end, _ = next_batch(reader, same(reader.initialOffset()))
    replace(http, name, *EQUAL)
    again = stream_reader(http, subscribe=name)
    again.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match=AGAIN):
        next_batch(again, end)


def test_a_server_that_does_not_say_when_a_stream_was_created_is_read(
    http: httpx.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(http, name, *OLD)
    reader = stream_reader(http, subscribe=name, failOnDataLoss="false")
    end, _ = next_batch(reader, same(reader.initialOffset()))
    post(http, name, b"4")
    tails, read_range = StreamApi.tails, StreamApi.read_range

    def silent_tails(server: StreamApi, *asked: Any, **options: Any) -> list[Tail]:
        return [
            dataclasses.replace(t, created_at_ms=None) for t in tails(server, *asked, **options)
        ]

    def silent_range(server: StreamApi, *asked: Any) -> Iterator[FramedChunk]:
        for chunk in read_range(server, *asked):
            yield dataclasses.replace(chunk, created_at_ms=None)

    monkeypatch.setattr(StreamApi, "tails", silent_tails)
    monkeypatch.setattr(StreamApi, "read_range", silent_range)
    again = stream_reader(http, subscribe=name, failOnDataLoss="false")
    assert values(next_batch(again, end)[1]) == [b"4"]
