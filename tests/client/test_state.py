"""Change messages become collections; a lost beginning is made up for by a snapshot."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from headrace import errors
from headrace.client import STATE_MEDIA_TYPE, BadAnswer, Change, Client, Live, State, Stream, Update
from headrace.client.state import TXIDS_MAX, joined
from headrace.testing.waiting import eventually
from tests.client.conftest import Connect
from tests.client.scripted import Reply, ScriptedServer
from tests.client.test_reading import LIVE


def message(operation: str, key: str = "1", value: Any = None, **headers: str) -> dict[str, Any]:
    return {
        "type": "user",
        "key": key,
        "value": value,
        "headers": {"operation": operation, **headers},
    }


def test_columns_that_a_change_left_out_are_kept_also_under_another_key() -> None:
    state = State()
    state.apply(message("insert", "1", {"id": 1, "n": 1, "body": "large"}))
    partial = message("update", "1", {"id": 1, "n": 2})
    partial["headers"]["unchanged"] = ["body"]
    state.apply(partial)
    moved = message("insert", "2", {"id": 2, "n": 2}, was="1")
    moved["headers"]["unchanged"] = ["body"]
    state.apply(moved)
    state.apply(message("delete", "1"))
    assert dict(state.rows("user")) == {"2": {"id": 2, "n": 2, "body": "large"}}
    state.apply(message("update", "2", {"id": 2}))
    assert state.get("user", "2") == {"id": 2}


def session(operation: str, key: str, value: Any = None) -> dict[str, Any]:
    return {"type": "chunk", "key": key, "operation": operation, "value": value}


def control(kind: str) -> dict[str, Any]:
    return {"headers": {"control": kind}}


def state_of(*messages: Any) -> State:
    state = State()
    for one in messages:
        state.apply(one)
    return state


@pytest.mark.parametrize("operation", ["insert", "update", "upsert"])
def test_the_last_value_stands(operation: str) -> None:
    state = state_of(message("insert", value=1), message(operation, value=2))
    assert state.rows("user") == {"1": 2}


def test_a_delete_removes_and_may_come_twice() -> None:
    state = state_of(message("insert", value=1), message("delete"), message("delete"))
    assert state.rows("user") == {}


def test_a_change_carries_what_was_before() -> None:
    state = state_of(message("insert", value=1))
    assert state.apply(message("update", value=2, txid="t")) == [
        Change("set", "user", "1", 2, 1, "t")
    ]


def test_session_events_set_remove_and_append() -> None:
    state = state_of(
        session("append", "m", "Hel"),
        session("append", "m", "lo"),
        session("set", "n", {"text": "a", "n": 1}),
        session("append", "n", {"text": "b", "n": 2, "new": True}),
        session("set", "gone", 1),
        session("remove", "gone"),
    )
    assert state.rows("chunk") == {"m": "Hello", "n": {"text": "ab", "n": 2, "new": True}}


@pytest.mark.parametrize(
    ("old", "new", "both"),
    [
        (None, "a", "a"),
        ([1], [2], [1, 2]),
        ([1], 2, [1, 2]),
        (1, 2, 2),
        ("a", 1, 1),
        ({}, "a", "a"),
    ],
)
def test_what_append_joins(old: Any, new: Any, both: Any) -> None:
    assert joined(old, new) == both


def test_reset_forgets_everything() -> None:
    state = state_of(message("insert", value=1), control("reset"), message("insert", "2", 2))
    assert state.rows("user") == {"2": 2}


def test_a_snapshot_in_the_stream_replaces_everything_when_complete() -> None:
    state = state_of(
        message("insert", "old", 1), control("snapshot-start"), message("insert", "new", 2)
    )
    assert state.rows("user") == {"old": 1}
    changes = state.apply(control("snapshot-end"))
    assert state.rows("user") == {"new": 2}
    assert [change.kind for change in changes] == ["reset", "set"]


@pytest.mark.parametrize(
    "other",
    [1, "x", None, [], {}, {"key": "1"}, message("rename"), message("insert") | {"type": ""}],
)
def test_other_messages_are_passed_over_and_counted(other: Any) -> None:
    state = state_of(other)
    assert (state.types, state.ignored) == ([], 1)


def test_an_empty_key_is_a_key_as_in_a_table_of_postgres() -> None:
    state = state_of(message("insert", key="", value=1), message("insert", "", 2))
    assert (dict(state.rows("user")), state.ignored) == ({"": 2}, 0)
    again = State()
    again.load(state.dump("x"))
    assert again.get("user", "") == 2
    again.apply(message("delete", key=""))
    assert not again.rows("user")


def test_transactions_are_remembered_up_to_a_bound() -> None:
    state = state_of(message("insert", value=1, txid="first"))
    assert state.has_txid("first")
    for number in range(TXIDS_MAX):
        state.apply(message("update", value=1, txid=str(number)))
    assert not state.has_txid("first")
    assert state.has_txid("0")


@dataclass
class User:
    name: str


def test_collections_are_typed_live_and_heard() -> None:
    state = State()
    users = state.collection("user", User)
    heard: list[tuple[str, User | None]] = []
    stop = users.subscribe(lambda key, user: heard.append((key, user)))
    state.apply(message("insert", value={"name": "Ada"}))
    state.apply(message("delete"))
    stop()
    state.apply(message("insert", value={"name": "Bob"}))
    assert heard == [("1", User("Ada")), ("1", None)]
    assert dict(users) == {"1": User("Bob")}


def test_a_snapshot_holds_all_of_a_state() -> None:
    state = state_of(message("insert", value={"n": 2**70}), session("append", "m", "Hel"))
    copy = State()
    copy.load(state.dump("7"))
    copy.apply(session("append", "m", "lo"))
    assert copy.rows("user") == {"1": {"n": 2**70}}
    assert copy.rows("chunk") == {"m": "Hello"}


@pytest.mark.parametrize("wrong", [b"", b"[]", b'{"offset":"1"}', b'{"collections":{}}'])
def test_what_is_no_snapshot_is_refused(wrong: bytes) -> None:
    state = state_of(message("insert", value=1))
    with pytest.raises(ValueError, match="not a snapshot"):
        state.load(wrong)
    assert state.rows("user") == {"1": 1}, "and nothing is lost"


def test_a_view_follows_its_stream_and_goes_on_later(fresh: Stream) -> None:
    fresh.create("application/json")
    fresh.append_json(message("insert", value=1))
    view = fresh.state()
    assert view.catch_up().rows("user") == {"1": 1}
    fresh.append_json(message("update", value=2), message("insert", "2", 2))
    later = fresh.state(view.state, view.offset)
    (update,) = later.updates()
    assert [change.value for change in update.changes] == [2, 2]
    fresh.close()
    assert [u.closed for u in later.updates(live="auto")] == [True]


@pytest.mark.parametrize("live", LIVE)
def test_closing_a_live_view_ends_its_wait_and_keeps_its_state(live: Live, fresh: Stream) -> None:
    fresh.create("application/json")
    fresh.append_json(message("insert", value=1))
    view = fresh.state()
    updates: list[Update] = []
    follower = threading.Thread(target=lambda: updates.extend(view.updates(live=live)))
    follower.start()
    eventually(lambda: view.state.rows("user") == {"1": 1}, "it has caught up")
    view.close()
    view.close()
    follower.join(60)
    assert not follower.is_alive()
    fresh.append_json(message("update", value=2))
    assert list(view.updates(live=live)) == [], "it stays closed"
    assert fresh.state(view.state, view.offset).catch_up().rows("user") == {"1": 2}


BOUNDARY = "b0"
TRIMMED = Reply(410, {"Stream-Next-Offset": "5"})


def bootstrap(*parts: tuple[str, bytes], snapshot_offset: str = "5") -> Reply:
    body = b"".join(
        b"--%b\r\nContent-Type: %b\r\n\r\n%b\r\n" % (BOUNDARY.encode(), kind.encode(), data)
        for kind, data in parts
    )
    headers = {
        "Content-Type": f'multipart/mixed; boundary="{BOUNDARY}"',
        "Stream-Snapshot-Offset": snapshot_offset,
        "Stream-Next-Offset": "7",
        "Stream-Up-To-Date": "true",
    }
    return Reply(200, headers, body + b"--b0--\r\n")


TAIL = Reply(200, {"Stream-Next-Offset": "7", "Stream-Up-To-Date": "true"}, b"[]")


def test_a_view_that_comes_too_late_begins_with_the_snapshot(connect: Connect) -> None:
    snapshot = state_of(message("insert", "kept", 1)).dump("5")
    change = b'{"type":"user","key":"new","value":2,"headers":{"operation":"insert"}}'
    start = bootstrap((STATE_MEDIA_TYPE, snapshot), ("application/json", change))
    with ScriptedServer(TRIMMED, start, TAIL) as server, connect(server.url) as client:
        stale = state_of(message("insert", "stale", 0))
        view = client.stream("s").state(stale, "2")
        assert view.catch_up().rows("user") == {"kept": 1, "new": 2}
        assert [asked.path for asked in server.asked][1] == "/v1/stream/s/bootstrap"
        assert server.asked[-1].params["offset"] == view.offset == "7"


def test_a_snapshot_of_another_kind_is_not_guessed_at(connect: Connect) -> None:
    start = bootstrap(("application/json", b"{}"))
    with ScriptedServer(TRIMMED, start) as server, connect(server.url) as client:
        view = client.stream("s").state()
        with pytest.raises(BadAnswer, match=STATE_MEDIA_TYPE.replace("+", r"\+")):
            view.catch_up()


def test_bootstrap_parts_come_byte_for_byte(connect: Connect) -> None:
    odd = b"\r\n--b\r\n\r\n--b1--\r\n"
    reply = bootstrap(("a/b", odd), ("text/plain", b""), ("text/plain", b"x\r\n"))
    with ScriptedServer(reply) as server, connect(server.url) as client:
        start = client.stream("s").bootstrap()
    assert start.snapshot is not None
    assert (start.snapshot.content_type, start.snapshot.data) == ("a/b", odd)
    assert [part.data for part in start.messages] == [b"", b"x\r\n"]
    assert (start.snapshot_offset, start.next_offset) == ("5", "7")


def test_a_bootstrap_without_a_snapshot_has_none(connect: Connect) -> None:
    reply = bootstrap(("application/octet-stream", b""), snapshot_offset="-1")
    with ScriptedServer(reply) as server, connect(server.url) as client:
        assert client.stream("s").bootstrap().snapshot is None


def test_a_bootstrap_that_was_cut_raises(connect: Connect) -> None:
    whole = bootstrap(("a/b", b"x"))
    cut = Reply(200, whole.headers, whole.body[:-6])
    with ScriptedServer(cut) as server, connect(server.url) as client:
        stream = client.stream("s")
        with pytest.raises(BadAnswer):
            stream.bootstrap()


def test_a_stream_outside_of_buckets_has_no_snapshots(client: Client, stream: str) -> None:
    outside = client.stream(stream)
    outside.create("text/plain")
    with pytest.raises(errors.InvalidRequest, match="Only a stream in a bucket"):
        outside.publish_snapshot("0", b"S", "text/plain")
    with pytest.raises(errors.StreamNotFound):
        client.stream(f"{stream}/snapshot/0").head()


def test_a_view_begins_again_from_a_published_snapshot(client: Client, stream: str) -> None:
    bucket_id = "state-" + stream.rpartition("/")[2]
    client.bucket(bucket_id).create()
    changes = client.stream(f"/{bucket_id}/changes")
    changes.create("application/json")
    changes.append_json(message("insert", "1", 1), session("append", "m", "Hel"))
    first = changes.state()
    first.catch_up()
    changes.publish_snapshot(first.offset, first.state.dump(first.offset), STATE_MEDIA_TYPE)
    changes.append_json(session("append", "m", "lo"), message("delete", "1"))
    snapshot = changes.snapshot()
    assert (snapshot.offset, snapshot.content_type) == (first.offset, STATE_MEDIA_TYPE)
    late = changes.state()
    updates = list(late.updates())
    assert updates[0].changes[0].kind == "reset"
    assert late.state.rows("chunk") == {"m": "Hello"}
    assert late.state.rows("user") == {}
    assert late.offset == changes.head().next_offset
    with pytest.raises(errors.SnapshotInUse):
        changes.delete_snapshot(first.offset)
