"""The feed of a bucket: which of its streams changed, up to which offset, in order."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import live_readers
from headrace.testing.sse_reader import open_events
from headrace.testing.waiting import eventually
from tests.buckets.api import CLOSE, JSON, TEXT, Mortal
from tests.conftest import Serve
from tests.http.helpers import client_of, problem_of


def feed(api: httpx.Client, bucket: str, cursor: str = "-1", **params: str) -> httpx.Response:
    return api.get(f"{bucket}/streams", params={"changes_from": cursor, **params})


def changes(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


def cursor_of(answer: httpx.Response) -> str:
    return str(answer.headers["Stream-Next-Offset"])


def test_the_feed_says_which_streams_changed_and_up_to_where(
    api: httpx.Client, bucket: str
) -> None:
    api.put(f"{bucket}/a", headers=TEXT)
    api.put(f"{bucket}/b", headers=TEXT)
    first = feed(api, bucket)
    assert [change["stream_id"] for change in changes(first)] == ["a", "b"]
    tail = api.post(f"{bucket}/b", content=b"x", headers=TEXT).headers["Stream-Next-Offset"]
    second = feed(api, bucket, cursor_of(first))
    [change] = changes(second)
    assert isinstance(change.pop("created_at_ms"), int)
    assert change == {"stream_id": "b", "next_offset": tail, "closed": False}
    assert changes(feed(api, bucket, cursor_of(second))) == []


def test_many_changes_of_one_stream_are_one_line(api: httpx.Client, bucket: str) -> None:
    api.put(f"{bucket}/a", headers=TEXT)
    start = cursor_of(feed(api, bucket))
    for _ in range(20):
        tail = api.post(f"{bucket}/a", content=b"x", headers=TEXT).headers["Stream-Next-Offset"]
    found = changes(feed(api, bucket, start))
    # One, unless the server's own timer came in between.
    assert len(found) <= 3
    assert found[-1]["next_offset"] == tail


def test_closing_and_deleting_are_changes(api: httpx.Client, bucket: str) -> None:
    api.put(f"{bucket}/a", headers=TEXT)
    start = cursor_of(feed(api, bucket))
    api.post(f"{bucket}/a", headers=CLOSE)
    closed = feed(api, bucket, start)
    assert changes(closed)[-1]["closed"] is True
    api.delete(f"{bucket}/a")
    assert changes(feed(api, bucket, cursor_of(closed))) == [{"stream_id": "a", "deleted": True}]


def test_a_follower_that_starts_now_hears_only_what_comes(api: httpx.Client, bucket: str) -> None:
    api.put(f"{bucket}/a", headers=TEXT)
    now = feed(api, bucket, "now")
    assert now.json() == []
    api.put(f"{bucket}/b", headers=TEXT)
    assert [c["stream_id"] for c in changes(feed(api, bucket, cursor_of(now)))] == ["b"]


def test_a_long_poll_waits_for_a_change(serve: Serve) -> None:
    server = serve(DS_SERVER__LONG_POLL_TIMEOUT_SECS="600")
    with client_of(server) as api, ThreadPoolExecutor(1) as pool:
        api.put("/agents")
        api.put("/agents/a", headers=TEXT)
        cursor = cursor_of(feed(api, "/agents"))
        waiting = pool.submit(feed, api, "/agents", cursor, live="long-poll")
        eventually(lambda: live_readers(api, "long-poll") == 1, "a long-poll")
        api.post("/agents/a", content=b"x", headers=TEXT)
        assert [change["stream_id"] for change in changes(waiting.result())] == ["a"]


def test_events_tell_of_changes_as_they_come(
    api: httpx.Client, modal: ServerProcess, bucket: str
) -> None:
    with open_events(modal.port, f"{bucket}/streams?changes_from=-1&live=sse") as events:
        events.batch()
        api.put(f"{bucket}/a", headers=TEXT)
        found = json.loads(events.batch().data or "")
        assert [change["stream_id"] for change in found] == ["a"]


def test_changes_of_one_bucket_are_not_told_in_another(api: httpx.Client, bucket: str) -> None:
    other = f"{bucket}-other"
    api.put(other)
    api.put(f"{other}/a", headers=TEXT)
    api.put("/v1/stream/base-only", headers=TEXT)
    assert changes(feed(api, bucket)) == []


@pytest.mark.parametrize(
    "params",
    [
        {"changes_from": "x"},
        {"changes_from": ""},
        {"changes_from": "-1", "prefix": "a"},
        {"changes_from": "-1", "limit": "3"},
        {"changes_from": "-1", "live": "maybe"},
        {"changes_from": "9999999999999999_9999999999999999"},
        {"changes_from": ["-1", "-1"]},
    ],
)
def test_what_makes_no_sense_is_refused(
    api: httpx.Client, bucket: str, params: dict[str, str]
) -> None:
    answer = api.get(f"{bucket}/streams", params=params)
    assert answer.status_code == 400
    assert problem_of(answer) in ("invalid-request", "invalid-offset")


def test_there_is_no_feed_of_a_bucket_that_is_not_there(api: httpx.Client) -> None:
    answer = feed(api, "/no-such-bucket")
    assert (answer.status_code, problem_of(answer)) == (404, "bucket-not-found")


def test_the_feed_takes_no_stream_id_and_no_writes(api: httpx.Client, bucket: str) -> None:
    assert api.post(f"{bucket}/streams", content=b"1", headers=JSON).status_code == 405
    assert api.delete(bucket).status_code == 204


@pytest.mark.parametrize("kill", [True, False])
def test_a_cursor_outlives_the_server_and_no_change_is_missed(mortal: Mortal, kill: bool) -> None:
    api = mortal.client
    api.put("/agents")
    for name in ("a", "b", "c"):
        api.put(f"/agents/{name}", headers=TEXT)
    cursor = cursor_of(feed(api, "/agents"))
    tail = api.post("/agents/b", content=b"x", headers=TEXT).headers["Stream-Next-Offset"]
    mortal.restart(kill=kill)
    found = changes(feed(mortal.client, "/agents", cursor))
    assert {c["stream_id"]: c.get("next_offset") for c in found}["b"] == tail
    mortal.client.put("/agents/d", headers=TEXT)
    assert "d" in {c["stream_id"] for c in changes(feed(mortal.client, "/agents", cursor))}


def test_tails_answer_for_streams_of_buckets_too(api: httpx.Client, bucket: str) -> None:
    api.put(f"{bucket}/a", headers=TEXT)
    tail = api.post(f"{bucket}/a", content=b"xyz", headers=TEXT).headers["Stream-Next-Offset"]
    query = {"streams": [{"stream": f"{bucket}/a", "from": "-1"}, f"{bucket}/b"]}
    found, missing = api.post("/v1/stream/__ds/tails", json=query).json()["streams"]
    assert (found["stream"], found["next_offset"], found["bytes"]) == (f"{bucket}/a", tail, 3)
    assert missing["problem"] == "stream-not-found"


def test_streams_of_buckets_are_read_framed_and_bounded(api: httpx.Client, bucket: str) -> None:
    api.put(f"{bucket}/a", headers=TEXT)
    end = api.post(f"{bucket}/a", content=b"one", headers=TEXT).headers["Stream-Next-Offset"]
    api.post(f"{bucket}/a", content=b"two", headers=TEXT)
    answer = api.get(f"{bucket}/a", params={"until": end, "format": "framed"})
    assert (answer.content[:4], answer.content[-3:]) == (b"HRM1", b"one")
