"""Create, append, head, close, delete and fork against a real server."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, fields
from typing import Any

import pytest

from headrace import errors
from headrace.client import Client, ProducerOptions, ProducerStamp, Retry, Settings, Stream
from headrace.client.send_queue import ProducerKeywords
from headrace.client.settings import ClientOptions
from headrace.testing.server_process import ServerProcess
from tests.client.conftest import Connect
from tests.client.scripted import Reply, ScriptedServer


def test_create_says_whether_it_was_there(fresh: Stream) -> None:
    assert fresh.create("text/plain").created
    assert not fresh.create("text/plain").created


def test_a_stream_holds_json_unless_something_else_is_said(fresh: Stream) -> None:
    assert fresh.create().content_type == "application/json"
    fresh.append_json({"n": 1})
    assert fresh.read_json() == [{"n": 1}]


def test_streams_outside_of_buckets_are_listed(client: Client, stream: str) -> None:
    client.stream(f"{stream}/b").create("text/plain")
    client.stream(f"{stream}/a").create()
    name = stream.removeprefix("/v1/stream/")
    found = [(found.name, found.content_type) for found in client.streams(f"{name}/")]
    assert found == [(f"{name}/a", "application/json"), (f"{name}/b", "text/plain")]


def test_the_typed_keywords_are_the_fields_they_stand_for() -> None:
    assert set(ClientOptions.__annotations__) == {f.name for f in fields(Settings)} - {"url"}
    assert set(ProducerKeywords.__annotations__) == {f.name for f in fields(ProducerOptions)}


def test_create_takes_data_lifetime_and_closure(fresh: Stream) -> None:
    created = fresh.create("text/plain", ttl_secs=60, data="all of it", closed=True)
    assert created.closed
    info = fresh.head()
    assert (info.content_type, info.ttl_secs, info.closed) == ("text/plain", 60, True)
    assert fresh.read_text() == "all of it"


def test_an_option_that_does_not_exist_is_refused(fresh: Stream) -> None:
    wrong: dict[str, Any] = {"ttl": 5}
    for act in (
        lambda: fresh.create("text/plain", **wrong),
        lambda: fresh.fork("other", **wrong),
        lambda: fresh.append("x", **wrong),
        lambda: fresh.read("-1", **wrong),
    ):
        with pytest.raises(TypeError, match="ttl"):
            act()
    with pytest.raises(errors.StreamNotFound):
        fresh.head()


def test_a_stream_of_another_kind_is_refused(fresh: Stream) -> None:
    fresh.create("text/plain")
    with pytest.raises(errors.ConfigurationMismatch):
        fresh.create("application/json")


def test_append_learns_the_content_type_by_itself(client: Client, fresh: Stream) -> None:
    fresh.create("text/plain")
    stranger = client.stream(fresh.url)
    appended = stranger.append("hello")
    assert appended.next_offset == fresh.head().next_offset
    assert fresh.read_bytes() == b"hello"


def test_a_json_value_that_is_a_list_stays_one_message(fresh: Stream) -> None:
    fresh.create("application/json")
    fresh.append_json([1, 2], {"n": 2**80})
    assert fresh.read_json() == [[1, 2], {"n": 2**80}]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_does_not_have_is_refused_before_anything_is_sent(
    number: float, connect: Connect
) -> None:
    with ScriptedServer(Reply(500)) as server, connect(server.url) as client:
        stream = client.stream("s")
        producer = stream.producer("p")
        for value in (number, {"a": [None, {"b": number}]}, (1, number), Measured(number)):
            with pytest.raises(errors.InvalidJson, match="NaN and Infinity"):
                stream.append_json(None, value)
            with pytest.raises(errors.InvalidJson, match="NaN and Infinity"):
                producer.append_json(value)
        assert producer.unaccepted() == []
        assert server.asked == []


@dataclass
class Measured:
    value: float


def test_what_is_no_json_value_is_refused_with_its_type(connect: Connect) -> None:
    with ScriptedServer(Reply(500)) as server, connect(server.url) as client:
        stream = client.stream("s")
        endless: list[object] = []
        endless.append(endless)
        for value, kind in ((object(), "object"), ("\ud800", "str"), (endless, "list")):
            with pytest.raises(errors.InvalidJson, match=f"This {kind} is not a JSON value"):
                stream.append_json(value)
        assert server.asked == []


def test_null_and_what_looks_like_it_is_kept(fresh: Stream) -> None:
    values = [None, {"a": None, "b": 1.5}, "null", [None, "null"]]
    fresh.create("application/json")
    fresh.append_json(*values)
    assert fresh.read_json() == values


def test_a_value_given_to_append_is_told_where_it_belongs(connect: Connect) -> None:
    with ScriptedServer(Reply(500)) as server, connect(server.url) as client:
        stream = client.stream("s")
        producer = stream.producer("p")
        for value in ({"a": 1}, 5, [1, 2], None):
            with pytest.raises(TypeError, match="append_json"):
                stream.append(value)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="append_json"):
                producer.append(value)  # type: ignore[arg-type]
        assert server.asked == []


def test_a_repeated_producer_append_is_a_duplicate(fresh: Stream) -> None:
    fresh.create("text/plain")
    stamp = ProducerStamp("p", 0, 0)
    first, second = fresh.append("a", producer=stamp), fresh.append("a", producer=stamp)
    assert (first.duplicate, second.duplicate) == (False, True)
    assert first.next_offset == second.next_offset
    assert fresh.read_text() == "a"


def test_producer_refusals_are_typed_and_carry_their_facts(fresh: Stream) -> None:
    fresh.create("text/plain")
    fresh.append("a", producer=ProducerStamp("p", 5, 0))
    with pytest.raises(errors.ProducerGap) as gap:
        fresh.append("b", producer=ProducerStamp("p", 5, 7))
    assert (gap.value.expected_seq, gap.value.received_seq) == (1, 7)
    with pytest.raises(errors.ProducerFenced) as fenced:
        fresh.append("b", producer=ProducerStamp("p", 4, 0))
    assert fenced.value.current_epoch == 5


def test_sequence_numbers_of_the_stream_must_rise(fresh: Stream) -> None:
    fresh.create("text/plain")
    fresh.append("a", seq="0002")
    with pytest.raises(errors.SequenceRegression):
        fresh.append("b", seq="0001")


def test_closing_is_for_good(fresh: Stream) -> None:
    fresh.create("text/plain")
    assert fresh.close("last words").closed
    assert fresh.close().closed, "closing again confirms it"
    with pytest.raises(errors.StreamClosed) as closed:
        fresh.append("more")
    assert closed.value.next_offset == fresh.head().next_offset


def test_a_deleted_stream_is_not_found(fresh: Stream) -> None:
    fresh.create("text/plain")
    assert fresh.delete()
    for act in (fresh.head, fresh.delete, lambda: fresh.append("x"), fresh.read_bytes):
        with pytest.raises(errors.StreamNotFound):
            act()


def test_a_fork_shares_the_past_and_goes_its_own_way(client: Client, fresh: Stream) -> None:
    fresh.create("text/plain")
    middle = fresh.append("one ").next_offset
    fresh.append("two")
    fork = client.stream(fresh.url + "-fork")
    fork.fork(fresh.url, offset=middle)
    fork.append("three")
    assert fork.read_text() == "one three"


def test_names_are_encoded_and_bad_ones_refused_before_anything_is_sent(
    client: Client, stream: str
) -> None:
    odd = client.stream(f"odd names/ü?#%/{stream[1:]}")
    odd.create("text/plain")
    odd.append("x")
    assert odd.read_text() == "x"
    with pytest.raises(errors.InvalidName):
        client.stream("a//b")


def test_settings_travel_between_processes(server: ServerProcess, stream: str) -> None:
    settings = Settings(server.url, token="t", headers={"X": "y"}, retry=Retry(retries_max=1))
    with Client(settings=pickle.loads(pickle.dumps(settings))) as client:
        assert client.settings == settings
        client.stream(stream).create("text/plain")


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"retries_max": -1}, "retries_max"),
        ({"delay_ms": 0}, "delay_ms"),
        ({"delay_ms": 10, "delay_max_ms": 5}, "delay_max_ms"),
        ({"multiplier": 0.5}, "multiplier"),
    ],
)
def test_a_retry_policy_that_makes_no_sense_is_refused(wrong: dict[str, float], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Retry(**wrong)  # type: ignore[arg-type]
