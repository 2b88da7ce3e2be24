"""Request bodies: what is taken, how it is normalised, and what is refused in which words."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.offsets import Position
from headrace.subscriptions import requests
from headrace.subscriptions.errors import Code, SubscriptionRefused
from headrace.subscriptions.model import Ack, SubscriptionKind, WorkerAnswer

HOOK = {"type": "webhook", "pattern": "events/*", "webhook": {"url": "https://w.example/"}}
PULL = {"type": "pull-wake", "pattern": "events/*", "wake_stream": "wake"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def refused(parse: Any, document: dict[str, Any]) -> SubscriptionRefused:
    with pytest.raises(SubscriptionRefused) as caught:
        parse(document)
    return caught.value


def test_the_least_a_webhook_subscription_needs() -> None:
    config = requests.parse_config(HOOK)
    assert config.kind is SubscriptionKind.WEBHOOK
    assert (config.pattern, config.streams) == ("events/*", ())
    assert (config.webhook_url, config.wake_stream) == ("https://w.example/", None)
    assert (config.lease_ttl_ms, config.description) == (30_000, None)


def test_what_belongs_to_the_other_type_does_not_count() -> None:
    both = {"webhook": {"url": "https://w.example/"}, "wake_stream": "wake"}
    assert requests.parse_config(HOOK | both) == requests.parse_config(HOOK)
    assert requests.parse_config(PULL | both) == requests.parse_config(PULL)


def test_slashes_order_and_repetition_of_streams_do_not_count() -> None:
    messy = HOOK | {"streams": ["/b/", "a", "b"], "pattern": "/events/*/"}
    tidy = HOOK | {"streams": ["a", "b"]}
    assert requests.parse_config(messy).digest() == requests.parse_config(tidy).digest()


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"type": "email"}, "type"),
        ({"type": None}, "type"),
        ({"type": ["webhook"]}, "type"),
        ({"pattern": None}, "pattern"),
        ({"pattern": ""}, "pattern"),
        ({"pattern": 1}, "pattern"),
        ({"pattern": "events/a*"}, "segments"),
        ({"streams": "a"}, "streams"),
        ({"streams": [1]}, "string"),
        ({"streams": [""]}, "stream"),
        ({"streams": ["a//b"]}, "segments"),
        ({"streams": ["../a"]}, "segments"),
        ({"streams": ["a\nb"]}, "control"),
        ({"streams": ["__ds/subscriptions/x"]}, "reserved"),
        ({"streams": ["a"] * 10_001}, "10000"),
        ({"webhook": None}, "webhook.url"),
        ({"webhook": "https://w.example/"}, "webhook.url"),
        ({"webhook": {"url": 1}}, "webhook.url"),
        ({"webhook": {"url": ""}}, "webhook.url"),
        ({"lease_ttl_ms": 999}, "lease_ttl_ms"),
        ({"lease_ttl_ms": 600_001}, "lease_ttl_ms"),
        ({"lease_ttl_ms": 1000.5}, "lease_ttl_ms"),
        ({"lease_ttl_ms": True}, "lease_ttl_ms"),
        ({"lease_ttl_ms": "1000"}, "lease_ttl_ms"),
        ({"description": 1}, "description"),
        ({"description": "a" * 4097}, "description"),
    ],
)
def test_a_refusal_names_what_is_wrong(change: dict[str, Any], names: str) -> None:
    refusal = refused(requests.parse_config, HOOK | change)
    assert refusal.code is Code.INVALID_REQUEST
    assert names in refusal.detail


@pytest.mark.parametrize("url", ["/v1/stream/orders/*", "https://ds.example/v1/stream/orders/*"])
def test_a_pattern_is_of_names_and_not_of_urls(url: str) -> None:
    refusal = refused(requests.parse_config, HOOK | {"pattern": url})
    assert refusal.code is Code.INVALID_REQUEST
    assert "pattern" in refusal.detail
    assert '"orders/*"' in refusal.detail


@pytest.mark.parametrize("url", ["/v1/stream/a", "http://localhost:4437/v1/stream/a"])
@pytest.mark.parametrize("field", ["streams", "wake_stream"])
def test_a_stream_is_named_and_not_its_url(field: str, url: str) -> None:
    change = {"streams": [url]} if field == "streams" else {"wake_stream": url}
    refusal = refused(requests.parse_config, PULL | change)
    assert refusal.code is Code.INVALID_REQUEST
    assert field in refusal.detail
    assert '"a"' in refusal.detail


def test_the_stream_root_that_counts_is_the_configured_one() -> None:
    root = "/durable"
    with pytest.raises(SubscriptionRefused):
        requests.parse_config(HOOK | {"pattern": "/durable/a/*"}, root)
    assert requests.parse_config(HOOK | {"pattern": "/v1/stream/*"}, root).pattern == "v1/stream/*"
    # Without a slash in front it is the name of a stream, however much it looks like a URL's.
    assert requests.parse_config(HOOK | {"pattern": "durable/*"}, root).pattern == "durable/*"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"lease_ttl": 1000}, "lease_ttl"),
        ({"patern": "a/*"}, "patern"),
        ({"webhook": {"url": "https://w.example/", "secret": "x"}}, "webhook.secret"),
        ({"id": "x"}, "id"),
    ],
)
def test_a_field_that_is_not_known_is_refused_by_name(change: dict[str, Any], field: str) -> None:
    refusal = refused(requests.parse_config, HOOK | change)
    assert refusal.code is Code.INVALID_REQUEST
    assert f'"{field}"' in refusal.detail
    assert "lease_ttl_ms" in refusal.detail or "webhook.url" in refusal.detail


def test_a_list_of_streams_has_no_other_fields() -> None:
    refusal = refused(requests.parse_streams, {"streams": ["a"], "pattern": "b/*"})
    assert '"pattern"' in refusal.detail


@pytest.mark.parametrize(
    "change",
    [
        {"wake_stream": None},
        {"wake_stream": ""},
        {"wake_stream": 1},
        {"wake_stream": "__registry__"},
        {"wake_stream": "__ds/x"},
        {"wake_stream": "events/wake"},
        {"wake_stream": "/events/wake"},
        {"wake_stream": "wake", "pattern": "**"},
        {"wake_stream": "wake", "streams": ["wake"]},
    ],
)
def test_a_wake_stream_must_be_another_stream_that_takes_appends(change: dict[str, Any]) -> None:
    assert refused(requests.parse_config, PULL | change).code is Code.INVALID_REQUEST


def test_the_registry_may_be_followed_by_name() -> None:
    assert requests.parse_config(HOOK | {"streams": ["__registry__"]}).streams == ("__registry__",)


@given(
    document=st.dictionaries(
        st.sampled_from(
            ["type", "pattern", "streams", "webhook", "wake_stream", "lease_ttl_ms", "description"]
        ),
        JSON | st.sampled_from(["webhook", "pull-wake", "a/*", {"url": "x"}, ["a"]]),
    )
)
def test_any_document_is_a_configuration_or_refused(document: dict[str, Any]) -> None:
    try:
        config = requests.parse_config(document)
    except SubscriptionRefused:
        return
    assert orjson.dumps(config.digest())


def test_an_answer() -> None:
    offset = "0000000000000002_0000000000000084"
    answer = requests.parse_answer(
        {
            "wake_id": "w_1",
            "generation": 7,
            "acks": [{"stream": "/a", "offset": offset}, {"path": "b", "offset": offset}],
            "done": True,
        }
    )
    position = Position(2, 84)
    assert answer == WorkerAnswer("w_1", 7, (Ack("a", position), Ack("b", position)), True)
    assert requests.parse_answer({"wake_id": "w", "generation": 1}) == WorkerAnswer("w", 1)


@pytest.mark.parametrize(
    "change",
    [
        {"wake_id": None},
        {"wake_id": 1},
        {"generation": None},
        {"generation": "1"},
        {"generation": True},
        {"generation": 1.0},
        {"acks": {}},
        {"acks": ["a"]},
        {"acks": [{"stream": "a"}]},
        {"acks": [{"offset": "0000000000000002_0000000000000084"}]},
        {"acks": [{"stream": "a", "offset": 1}]},
        {"done": "true"},
        {"done": 1},
    ],
)
def test_an_answer_that_is_not_one_is_refused(change: dict[str, Any]) -> None:
    document = {"wake_id": "w_1", "generation": 1} | change
    assert refused(requests.parse_answer, document).code is Code.INVALID_REQUEST


@pytest.mark.parametrize("offset", ["-1", "now", "", "1_1", "9" * 33, "0000000000000002-00"])
def test_only_an_offset_that_a_stream_returned_can_be_acknowledged(offset: str) -> None:
    document = {"wake_id": "w", "generation": 1, "acks": [{"stream": "a", "offset": offset}]}
    assert refused(requests.parse_answer, document).code is Code.INVALID_OFFSET


@given(document=st.dictionaries(st.sampled_from(["wake_id", "generation", "acks", "done"]), JSON))
def test_any_document_is_an_answer_or_refused(document: dict[str, Any]) -> None:
    try:
        requests.parse_answer(document)
    except SubscriptionRefused:
        return
    assert isinstance(document["wake_id"], str)


@pytest.mark.parametrize("worker", [None, "", 1, "a" * 257])
def test_a_worker_has_a_name(worker: object) -> None:
    assert refused(requests.parse_worker, {"worker": worker}).code is Code.INVALID_REQUEST
