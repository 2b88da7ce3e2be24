"""Buckets, listings and subscriptions through the client."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from headrace import errors
from headrace.client import (
    BadAnswer,
    BadSignature,
    Client,
    Subscription,
    SubscriptionRefused,
    verify_webhook,
)
from headrace.subscriptions.signing import SigningKey
from tests.client.conftest import Connect
from tests.client.scripted import Reply, ScriptedServer

_numbers = count()


@pytest.fixture
def bucket_id() -> str:
    return f"client-{next(_numbers)}"


def test_a_bucket_is_made_filled_listed_and_deleted(client: Client, bucket_id: str) -> None:
    bucket = client.bucket(bucket_id)
    bucket.create()
    with pytest.raises(errors.BucketExists):
        bucket.create()
    for name in ("b", "a 1", "a/2".replace("/", "-")):
        client.stream(f"/{bucket_id}/{name.replace(' ', '%20')}").create("text/plain", data="x")
    assert bucket.info().streams == 3
    assert [entry.stream_id for entry in bucket.streams()] == ["a 1", "a-2", "b"]
    assert [entry.stream_id for entry in bucket.streams("a")] == ["a 1", "a-2"]
    with pytest.raises(errors.BucketNotEmpty):
        bucket.delete()
    for entry in list(bucket.streams()):
        assert client.stream(f"/{bucket_id}/{entry.stream_id}").read_text() == "x"
        client.stream(f"/{bucket_id}/{entry.stream_id}").delete()
    bucket.delete()
    with pytest.raises(errors.BucketNotFound):
        bucket.info()


def test_a_long_listing_is_read_page_by_page(connect: Connect) -> None:
    def page(*ids: str, more: str | None = None) -> Reply:
        streams = [
            {"stream_id": i, "status": "Open", "content_type": "a/b", "tail_offset": 0} for i in ids
        ]
        document: dict[str, Any] = {"streams": streams, "has_more": more is not None}
        document["next_cursor"] = more
        return Reply(200, {"Content-Type": "application/json"}, msgspec.json.encode(document))

    with ScriptedServer(page("a", "b", more="b"), page("c")) as server:
        with connect(server.url) as client:
            found = [entry.stream_id for entry in client.bucket("many").streams()]
        assert found == ["a", "b", "c"]
        assert [asked.params.get("after") for asked in server.asked] == [None, "b"]


def test_subscriptions_are_listed_page_by_page(connect: Connect) -> None:
    def page(*ids: str, more: str | None = None) -> Reply:
        listed = [{"id": i, "type": "webhook", "status": "active", "generation": 3} for i in ids]
        document = {"subscriptions": listed, "has_more": more is not None, "next_cursor": more}
        return Reply(200, {"Content-Type": "application/json"}, msgspec.json.encode(document))

    with ScriptedServer(page("a", "b", more="b"), page("c")) as server:
        with connect(server.url) as client:
            found = [(entry.id, entry.generation) for entry in client.subscriptions("x")]
        assert found == [("a", 3), ("b", 3), ("c", 3)]
        assert [asked.params.get("after") for asked in server.asked] == [None, "b"]
        assert {asked.params["prefix"] for asked in server.asked} == {"x"}


def test_the_last_messages_are_found_in_as_many_steps_as_the_server_takes(
    connect: Connect,
) -> None:
    def tail(until: str | None) -> Reply:
        entry = {"stream": "s", "next_offset": place(9), "earliest_offset": place(2)}
        document = {"streams": [entry | ({} if until is None else {"until_offset": until})]}
        return Reply(200, {"Content-Type": "application/json"}, msgspec.json.encode(document))

    def place(messages: int) -> str:
        return f"{messages:016d}_{messages * 10:016d}"

    with ScriptedServer(tail(None), tail(place(5)), tail(place(7))) as server:
        with connect(server.url) as client:
            assert client.stream("s").offset_of_last(2) == place(7)
        asked = [msgspec.json.decode(each.body)["streams"][0] for each in server.asked]
    assert [query.get("from") for query in asked] == [None, place(2), place(5)]
    assert [query.get("max_messages") for query in asked] == [None, 5, 2]


def test_a_server_that_does_not_move_does_not_hold_the_client(connect: Connect) -> None:
    start = f"{0:016d}_{0:016d}"
    entry = {"stream": "s", "next_offset": f"{9:016d}_{9:016d}", "earliest_offset": start}
    body = msgspec.json.encode({"streams": [entry | {"until_offset": start}]})
    reply = Reply(200, {"Content-Type": "application/json"}, body)
    with (
        ScriptedServer(reply) as server,
        connect(server.url) as client,
        pytest.raises(BadAnswer, match="5 messages"),
    ):
        client.stream("s").offset_of_last(4)


def test_pull_wake_work_is_claimed_and_acknowledged(client: Client, stream: str) -> None:
    name = stream.removeprefix("/v1/stream/")
    subscription = pull_wake(client, name)
    assert subscription.info()["type"] == "pull-wake"
    tail = client.stream(name).append("work").next_offset
    wake = subscription.claim("worker-1")
    assert [(s.path, s.tail_offset) for s in wake.streams] == [(name, tail)]
    with pytest.raises(SubscriptionRefused) as taken:
        subscription.claim("worker-2")
    assert taken.value.code == "ALREADY_CLAIMED"
    assert tail is not None
    subscription.ack(wake, {name: tail}, done=True)
    assert subscription.info()["streams"][0]["acked_offset"] == tail
    subscription.delete()
    with pytest.raises(SubscriptionRefused, match="no subscription"):
        subscription.info()


def test_released_work_is_there_to_claim_again(client: Client, stream: str) -> None:
    name = stream.removeprefix("/v1/stream/")
    subscription = pull_wake(client, name)
    client.stream(name).append("work")
    first = subscription.claim("worker-1")
    subscription.release(first)
    second = subscription.claim("worker-2")
    assert [s.path for s in second.streams] == [name]
    assert second.generation > first.generation
    with pytest.raises(SubscriptionRefused) as late:
        subscription.release(first)
    assert late.value.code == "FENCED"
    subscription.delete()


def test_streams_can_be_added_to_a_subscription(client: Client, stream: str) -> None:
    name = stream.removeprefix("/v1/stream/")
    subscription = pull_wake(client, name)
    more = [f"{name}-more", f"{name}-ü"]
    for each in more:
        client.stream(each).create("text/plain")
    subscription.add_streams(*more)
    subscription.add_streams(more[0])
    assert sorted(s["path"] for s in subscription.info()["streams"]) == sorted([name, *more])
    tail = client.stream(more[1]).append("work").next_offset
    wake = subscription.claim("worker")
    assert [(s.path, s.tail_offset) for s in wake.streams if s.has_pending] == [(more[1], tail)]
    subscription.delete()
    with pytest.raises(SubscriptionRefused, match="no subscription"):
        subscription.add_streams(name)


def pull_wake(client: Client, name: str) -> Subscription:
    client.stream(f"{name}-wakes").create("application/json")
    client.stream(name).create("text/plain")
    subscription = client.subscription(name.replace("/", "-"))
    subscription.create(type="pull-wake", streams=[name], wake_stream=f"{name}-wakes")
    return subscription


# -- webhook signatures -------------------------------------------------------------------------


KEY = SigningKey(Ed25519PrivateKey.generate())
BODY = b'{"wake_id":"w","generation":1}'
NOW_MS = 1_700_000_000_000


def test_a_webhook_of_the_server_is_trusted() -> None:
    signature = KEY.signature(BODY, int(time.time() * 1000))
    assert verify_webhook(BODY, signature, KEY.jwks) == {"wake_id": "w", "generation": 1}


@pytest.mark.parametrize(
    ("body", "signature", "secs_later"),
    [
        (BODY + b" ", KEY.signature(BODY, NOW_MS), 0),
        (BODY, SigningKey(Ed25519PrivateKey.generate()).signature(BODY, NOW_MS), 0),
        (BODY, KEY.signature(BODY, NOW_MS), 301),
        (BODY, KEY.signature(BODY, NOW_MS), -301),
        (BODY, KEY.signature(BODY, NOW_MS).replace("t=1700", "t=1699"), 0),
        (BODY, KEY.signature(BODY, NOW_MS).partition(",ed25519")[0], 0),
        (BODY, f"t=1700000000,kid={KEY.kid},ed25519=???", 0),
        (BODY, "", 0),
        (BODY, "nonsense", 0),
    ],
    ids=["body", "key", "old", "early", "time", "unsigned", "unreadable", "empty", "nonsense"],
)
def test_a_webhook_of_anyone_else_is_not(body: bytes, signature: str, secs_later: int) -> None:
    with pytest.raises(BadSignature):
        verify_webhook(body, signature, KEY.jwks, now_secs=NOW_MS / 1000 + secs_later)
