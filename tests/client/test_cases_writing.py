"""Writing as upstream's client harness asks it: lifecycle, closure, producers, sequences.

`conformance_cases.txt` says which of its cases each of these covers; here they run against our
own server, in every `make test`, with both clients.
"""

from __future__ import annotations

import threading
from itertools import count
from typing import Any

import pytest

from headrace import errors
from headrace.client import Appended, Client, Live, ProducerOptions, ProducerStamp, Retry, Stream
from headrace.client import status_of as status
from headrace.testing.waiting import eventually
from tests.client.conftest import Connect
from tests.client.scripted import Reply, ScriptedServer

HEAD = Reply(200, {"Content-Type": "text/plain", "Stream-Next-Offset": "0"})


@pytest.fixture
def text(fresh: Stream) -> Stream:
    fresh.create("text/plain")
    return fresh


def stamped(stream: Stream, data: str, epoch: int, seq: int, *, by: str = "p") -> Appended:
    return stream.append(data, producer=ProducerStamp(by, epoch, seq))


# -- streams ------------------------------------------------------------------------------------


def test_a_stream_lives_and_may_live_again(client: Client, stream: str) -> None:
    one, other = client.stream(stream + "-one"), client.stream(stream + "-other")
    assert one.create("text/plain").created
    assert other.create("text/plain").created
    one.append("first life")
    other.append("its own")
    assert (one.read_text(), other.read_text()) == ("first life", "its own")
    assert one.delete()
    with pytest.raises(errors.StreamNotFound):
        one.delete()
    with pytest.raises(errors.StreamNotFound):
        one.append("too late")
    assert other.read_text() == "its own"
    assert one.create("text/plain").created
    assert one.read_text() == ""


@pytest.mark.parametrize(
    "kind", ["application/json", "application/octet-stream", "text/html; charset=utf-8", "a/b+c"]
)
def test_head_tells_what_create_was_told(kind: str, fresh: Stream) -> None:
    created = fresh.create(kind, ttl_secs=3600)
    assert (created.created, created.content_type) == (True, kind)
    assert not fresh.create(kind, ttl_secs=3600).created, "an equal stream is confirmed"
    info = fresh.head()
    assert (info.content_type, info.ttl_secs, info.closed) == (kind, 3600, False)
    assert info.next_offset == created.next_offset


def test_headers_and_parameters_go_with_every_verb(connect: Connect) -> None:
    created = Reply(201, {"Stream-Next-Offset": "0", "Content-Type": "text/plain"})
    done = Reply(204, {"Stream-Next-Offset": "1"})
    read = Reply(200, {"Stream-Next-Offset": "1", "Stream-Up-To-Date": "true"})
    tokens = count(1)
    with ScriptedServer(created, done, HEAD, read, done, done) as server:
        with connect(server.url, token=lambda: f"token-{next(tokens)}") as client:
            stream = client.stream("s", headers={"X-Tenant": "a b"}, params={"n": "1"})
            stream.create("text/plain")
            stream.append("x")
            stream.head()
            stream.read_bytes()
            stream.close()
            stream.delete()
        methods = [asked.method for asked in server.asked]
        assert methods == ["PUT", "POST", "HEAD", "GET", "POST", "DELETE"]
        assert {asked.headers["x-tenant"] for asked in server.asked} == {"a b"}
        assert {asked.params["n"] for asked in server.asked} == {"1"}
        assert [asked.headers["authorization"] for asked in server.asked] == [
            f"Bearer token-{number}" for number in range(1, 7)
        ]


def test_what_is_appended_is_there_whatever_its_size(text: Stream) -> None:
    parts = ["a", "héllo 世界 🌍", "x" * 1_000_000, "\x00\r\n", "end"]
    for part in parts:
        text.append(part)
    assert text.read_text() == "".join(parts)


def test_an_empty_append_is_refused(text: Stream) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        text.append("")
    assert status(refused.value) == 400
    assert text.read_text() == ""


# -- closing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [None, "the end"])
def test_closing_tells_the_tail_and_may_be_repeated(last: str | None, text: Stream) -> None:
    tail = text.append("before ").next_offset
    closed = text.close(last)
    assert closed.closed
    assert (closed.next_offset == tail) is (last is None)
    info = text.head()
    assert (info.closed, info.next_offset) == (True, closed.next_offset)
    assert text.close().next_offset == closed.next_offset
    assert text.read_text() == "before " + (last or "")


def test_a_closed_stream_takes_nothing_more(text: Stream) -> None:
    text.close("all")
    for close in (False, True):
        with pytest.raises(errors.StreamClosed) as refused:
            text.append("more", close=close)
        assert refused.value.next_offset == text.head().next_offset
        assert status(refused.value) == 409
    assert text.read_text() == "all"
    assert text.delete()
    with pytest.raises(errors.StreamNotFound):
        text.head()


@pytest.mark.parametrize("data", [None, "whole"])
def test_a_stream_may_be_created_closed(data: str | None, fresh: Stream) -> None:
    created = fresh.create("text/plain", closed=True, data=data, ttl_secs=60)
    assert (created.created, created.closed) == (True, True)
    info = fresh.head()
    assert (info.closed, info.ttl_secs) == (True, 60)
    reader = fresh.read()
    assert "".join(reader.text()) == (data or "")
    assert (reader.closed, reader.up_to_date) == (True, True)


def test_a_reader_learns_of_a_close_that_comes_after_the_data(text: Stream) -> None:
    text.append("all there is")
    reader = text.read()
    assert (list(reader.text()), reader.closed) == (["all there is"], False)
    text.close()
    again = text.read(reader.offset)
    assert (list(again.text()), again.closed) == ([], True)


@pytest.mark.parametrize("live", ["auto", "long-poll", "sse"])
def test_a_follower_learns_of_a_close_without_data(live: Live, text: Stream) -> None:
    text.append("x")
    reader = text.read(live=live)
    follower = threading.Thread(target=lambda: list(reader))
    follower.start()
    eventually(lambda: reader.up_to_date, "it waits at the tail")
    assert not reader.closed
    text.close()
    follower.join(60)
    assert not follower.is_alive()
    assert reader.closed


def test_closing_what_is_not_there_is_refused(fresh: Stream) -> None:
    with pytest.raises(errors.StreamNotFound):
        fresh.close()


# -- stamps -------------------------------------------------------------------------------------


def test_a_producers_numbers_must_follow_each_other(text: Stream) -> None:
    with pytest.raises(errors.ProducerGap) as early:
        stamped(text, "?", 0, 1)
    assert (early.value.expected_seq, early.value.received_seq) == (0, 1)
    for seq in range(3):
        taken = stamped(text, str(seq), 0, seq)
        assert (taken.duplicate, taken.producer_seq) == (False, seq)
    with pytest.raises(errors.ProducerGap) as gap:
        stamped(text, "4", 0, 4)
    assert (gap.value.expected_seq, gap.value.received_seq) == (3, 4)
    stamped(text, "3", 0, 3)
    stamped(text, "4", 0, 4)
    assert text.read_text() == "01234"


def test_a_repeat_is_taken_for_one_whatever_it_holds(text: Stream) -> None:
    for seq in range(6):
        stamped(text, str(seq), 0, seq)
    for seq in (5, 0, 3):
        assert stamped(text, "something else", 0, seq).duplicate
    assert not stamped(text, "6", 0, 6).duplicate
    assert text.read_text() == "0123456"


def test_a_repeated_close_is_taken_for_one_whatever_it_holds(text: Stream) -> None:
    first = text.close("A", producer=ProducerStamp("p", 0, 0))
    again = text.close("B", producer=ProducerStamp("p", 0, 0))
    assert (first.duplicate, again.duplicate, again.closed) == (False, True, True)
    assert text.read_text() == "A"
    with pytest.raises(errors.StreamClosed):
        text.close(producer=ProducerStamp("another", 0, 0))


def test_epochs_only_rise_and_begin_at_zero(text: Stream) -> None:
    stamped(text, "a", 1, 0)
    stamped(text, "b", 1, 1)
    with pytest.raises(errors.InvalidRequest):
        stamped(text, "?", 2, 5)
    stamped(text, "c", 7, 0)
    stamped(text, "d", 7, 1)
    for old in (0, 1, 6):
        with pytest.raises(errors.ProducerFenced) as fenced:
            stamped(text, "zombie", old, 2)
        assert (fenced.value.current_epoch, fenced.value.received_epoch) == (7, old)
        assert status(fenced.value) == 403
    stamped(text, "e", 2**53 - 1, 0)
    with pytest.raises(errors.ProducerFenced):
        stamped(text, "zombie", 7, 2)
    assert text.read_text() == "abcde"


def test_a_refused_append_uses_up_no_number(fresh: Stream) -> None:
    fresh.create("application/json")
    stamped(fresh, "1", 0, 0)
    with pytest.raises(errors.InvalidJson):
        stamped(fresh, "{no json", 0, 1)
    stamped(fresh, "2", 0, 1)
    assert fresh.read_json() == [1, 2]


def test_producers_and_streams_count_each_for_itself(client: Client, stream: str) -> None:
    here, there = client.stream(stream + "-here"), client.stream(stream + "-there")
    odd = ["service:instance:123", "region/zone/host", "long" * 60, "a b"]
    for target in (here, there):
        target.create("text/plain")
        for seq in range(2):
            for name in odd:
                assert not stamped(target, f"{odd.index(name)}{seq} ", 0, seq, by=name).duplicate
    stamped(here, "new", 5, 0, by=odd[0])
    stamped(there, "old", 0, 2, by=odd[0])
    assert here.read_text() == "00 10 20 30 01 11 21 31 new"
    assert there.read_text() == "00 10 20 30 01 11 21 31 old"
    here.delete()
    here.create("text/plain")
    stamped(here, "again", 0, 0, by=odd[0])
    assert here.read_text() == "again"


@pytest.mark.parametrize(
    "headers",
    [
        {"Producer-Id": "p"},
        {"Producer-Id": "p", "Producer-Epoch": "0"},
        {"Producer-Id": "", "Producer-Epoch": "0", "Producer-Seq": "0"},
        {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "1abc"},
        {"Producer-Id": "p", "Producer-Epoch": "1e3", "Producer-Seq": "0"},
        {"Producer-Id": "p", "Producer-Epoch": "-1", "Producer-Seq": "0"},
    ],
)
def test_half_a_stamp_is_refused(headers: dict[str, str], client: Client, text: Stream) -> None:
    by_hand = client.stream(text.url, content_type="text/plain", headers=headers)
    with pytest.raises(errors.InvalidRequest) as refused:
        by_hand.append("x")
    assert status(refused.value) == 400
    assert text.read_text() == ""


# -- the sequence of the stream -----------------------------------------------------------------


def test_sequences_may_skip_but_not_repeat_or_fall(text: Stream) -> None:
    for seq in ("1", "2", "5", "9"):
        text.append(seq, seq=seq)
    for seq in ("9", "3", "1"):
        with pytest.raises(errors.SequenceRegression) as late:
            text.append("late", seq=seq)
        assert (late.value.last_seq, late.value.received_seq) == ("9", seq)
    text.append("-")
    text.append("z", seq="9" * 60)
    text.append("p", seq="app-001", producer=ProducerStamp("p", 0, 0))
    assert text.read_text() == "1259-zp"


def test_appends_at_once_all_arrive_and_each_hears_its_own_fate(text: Stream) -> None:
    heard: dict[int, str] = {}

    def write(number: int) -> None:
        try:
            text.append(f"<{number}>", seq=None if number % 2 else "0")
            heard[number] = "taken"
        except errors.SequenceRegression:
            heard[number] = "refused"

    text.append("<first>", seq="1")
    writers = [threading.Thread(target=write, args=(number,)) for number in range(12)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert heard == {number: "taken" if number % 2 else "refused" for number in range(12)}
    found = text.read_text().removeprefix("<first>")
    assert sorted(found.strip("<>").split("><")) == sorted(["1", "3", "5", "7", "9", "11"])


# -- the idempotent producer --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
@pytest.mark.parametrize("fenced", [False, True], ids=["first", "fenced"])
def test_many_small_batches_in_flight_arrive_once_and_in_order(
    fenced: bool, kind: str, fresh: Stream
) -> None:
    fresh.create(kind)
    if fenced:
        stamped(fresh, '"newer"' if "json" in kind else "newer ", 4, 0)
    expected: list[Any] = ["newer"] if fenced else []
    options: Any = {"epoch": 0, "auto_claim": True, "batch_items_max": 2, "linger_ms": 0}
    with fresh.producer("p", **options) as producer:
        for number in range(40):
            producer.append(str(number) if "json" in kind else f"{number} ")
    assert producer.epoch == (5 if fenced else 0)
    if "json" in kind:
        assert fresh.read_json() == expected + list(range(40))
    else:
        assert fresh.read_text().split() == expected + [str(number) for number in range(40)]


def test_values_of_every_kind_stay_what_they_are_in_a_batch(fresh: Stream) -> None:
    values: list[Any] = [1, "x", None, True, 1.5, [], [1, [2]], {}, {"a": {"b": [None]}}]
    fresh.create("application/json")
    with fresh.producer() as producer:
        for value in values:
            producer.append_json(value)
    assert fresh.read_json() == values
    with fresh.producer() as producer:
        producer.append_json("alone")
    assert fresh.read_json()[-1] == "alone"


def test_a_whole_batch_sent_again_is_in_the_stream_once(fresh: Stream) -> None:
    fresh.create("application/json")
    for _ in range(2):
        fresh.append_json(1, 2, producer=ProducerStamp("p", 0, 0))
        fresh.append_json(3, producer=ProducerStamp("p", 0, 1))
    assert fresh.read_json() == [1, 2, 3]


def test_a_producer_that_closed_has_closed_for_others(text: Stream) -> None:
    with text.producer("one") as producer:
        producer.append("a")
        producer.close("z")
    other = text.producer("other")
    with pytest.raises(errors.StreamClosed):
        other.close()
    assert (text.read_text(), text.head().closed) == ("az", True)


# -- what makes no sense ------------------------------------------------------------------------


def test_sensible_options_are_taken() -> None:
    assert Retry(retries_max=0, delay_ms=1, delay_max_ms=1, multiplier=1.0).allows(0)
    assert ProducerOptions(epoch=0, batch_bytes_max=1, batch_items_max=1).epoch == 0


@pytest.mark.parametrize("name", ["batch_bytes_max", "batch_items_max"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_batch_holds_at_least_one(name: str, value: int, text: Stream) -> None:
    wrong: Any = {name: value}
    with pytest.raises(ValueError, match=name):
        text.producer("p", **wrong)
