"""Listing a bucket: prefix, cursor and limit; what a page says of each stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.engine import Engine
from headrace.engine.sorted_ids import SortedIds
from headrace.engine.stream_runtime import Stream
from headrace.errors import BucketNotEmpty
from headrace.protocol.expiry import Lifetime
from headrace.protocol.requests import Create
from headrace.storage.base import ignore
from headrace.storage.memory import MemoryStorage
from headrace.testing.virtual_clock import VirtualClock
from headrace.testing.waiting import eventually
from tests.buckets.api import CLOSE, JSON, TEXT, Mortal
from tests.http.helpers import problem_of


def ids_on(page: dict[str, Any]) -> list[str]:
    return [stream["stream_id"] for stream in page["streams"]]


def pages(api: httpx.Client, bucket: str, **params: Any) -> Iterator[dict[str, Any]]:
    while True:
        page = api.get(f"{bucket}/streams", params=params).json()
        yield page
        if not page["has_more"]:
            return
        params["after"] = page["next_cursor"]


def test_an_empty_bucket_lists_nothing(api: httpx.Client, bucket: str) -> None:
    answer = api.get(f"{bucket}/streams")
    assert answer.status_code == 200
    assert answer.json() == {
        "bucket_id": bucket[1:],
        "prefix": "",
        "stream_count": 0,
        "streams": [],
        "next_cursor": None,
        "has_more": False,
    }


def test_a_page_says_what_a_stream_is(api: httpx.Client, bucket: str) -> None:
    before = int(api.put(f"{bucket}/open", headers=JSON).elapsed.total_seconds())
    api.post(f"{bucket}/open", headers=JSON, content=b"[1,22]")
    api.put(f"{bucket}/shut", headers=TEXT | CLOSE, content=b"four")
    listed = api.get(f"{bucket}/streams").json()["streams"]
    assert [stream["status"] for stream in listed] == ["Open", "Closed"]
    assert [stream["content_type"] for stream in listed] == ["application/json", "text/plain"]
    assert [stream["tail_offset"] for stream in listed] == [5, 4]
    for stream in listed:
        head = api.head(f"{bucket}/{stream['stream_id']}")
        assert stream["next_offset"] == head.headers["stream-next-offset"]
        assert before <= stream["created_at_ms"] <= stream["last_write_at_ms"]
    api.get(f"{bucket}/open")
    assert api.get(f"{bucket}/streams").json()["streams"] == listed, "reading is not writing"


def test_ids_are_sorted_by_their_utf8_bytes(api: httpx.Client, bucket: str) -> None:
    ids = ["b", "a", "B", "~", "é", "z", "\U0001f600", "\uffee", "a b", "a-", "10", "9"]
    for stream_id in ids:
        api.put(f"{bucket}/{stream_id}", headers=TEXT)
    listed = ids_on(api.get(f"{bucket}/streams").json())
    assert listed == sorted(ids, key=str.encode)


def test_pages_follow_one_another(api: httpx.Client, bucket: str) -> None:
    ids = sorted(f"user-{number}" for number in range(25))
    for stream_id in [*ids, "admin", "zebra"]:
        api.put(f"{bucket}/{stream_id}", headers=TEXT)
    found = list(pages(api, bucket, prefix="user-", limit=10))
    assert [page["stream_count"] for page in found] == [10, 10, 5]
    assert [stream_id for page in found for stream_id in ids_on(page)] == ids
    assert [page["next_cursor"] for page in found] == [ids[9], ids[19], None]
    assert {page["prefix"] for page in found} == {"user-"}
    exact = api.get(f"{bucket}/streams", params={"prefix": "user-", "limit": 25}).json()
    assert (exact["has_more"], exact["next_cursor"]) == (False, None)


def test_a_cursor_need_not_exist(api: httpx.Client, bucket: str) -> None:
    for stream_id in ("a", "c", "e"):
        api.put(f"{bucket}/{stream_id}", headers=TEXT)
    ask = f"{bucket}/streams"
    assert ids_on(api.get(ask, params={"after": "b"}).json()) == ["c", "e"]
    assert ids_on(api.get(ask, params={"after": "c"}).json()) == ["e"]
    assert ids_on(api.get(ask, params={"after": "e"}).json()) == []
    assert ids_on(api.get(ask, params={"after": "c", "prefix": "a"}).json()) == []
    assert ids_on(api.get(ask, params={"after": "a", "prefix": "c"}).json()) == ["c"]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=-1", "limit=x", "limit=", "limit=1&limit=2", "prefix=%ff",
     "after=a&after=b", "limit=1.0", "limit=%D9%A1"],
)  # fmt: skip
def test_an_invalid_query_is_refused(api: httpx.Client, bucket: str, query: str) -> None:
    refused = api.get(f"{bucket}/streams?{query}")
    assert (refused.status_code, problem_of(refused)) == (400, "invalid-request")


def test_what_has_expired_or_is_deleted_is_not_listed(api: httpx.Client, bucket: str) -> None:
    api.put(f"{bucket}/short", headers=TEXT | {"Stream-TTL": "1"})
    api.put(f"{bucket}/source", headers=TEXT)
    api.put(f"{bucket}/fork", headers={"Stream-Forked-From": f"{bucket}/source"})
    api.delete(f"{bucket}/source")
    eventually(lambda: ids_on(api.get(f"{bucket}/streams").json()) == ["fork"], "expiry")
    assert api.get(bucket).json()["streams"] == 1
    assert api.put(f"{bucket}/short", headers=TEXT).status_code == 201, "the id is free again"
    assert ids_on(api.get(f"{bucket}/streams").json()) == ["fork", "short"]


def test_however_many_expire_at_once_none_of_them_is_listed_or_counted() -> None:
    """More than any sweep or deletion clears away at a time."""
    clock = VirtualClock()
    engine = Engine(MemoryStorage(), clock)
    for bucket_id in ("full", "half"):
        engine.buckets.create(bucket_id, ignore)
    expiring = Create(lifetime=Lifetime(ttl_secs=10))
    for number in range(12_000):
        engine.create(f"/full/{number:06d}", expiring, ignore)
    for number in range(100):
        engine.create(f"/half/{number:06d}", expiring if number % 2 else Create(), ignore)
    full, half = engine.buckets.find("full"), engine.buckets.find("half")
    assert counts(engine) == {"full": 12_000, "half": 100}
    clock.advance(secs=5)
    engine.touch(engine.find("/half/000001"))
    clock.advance(secs=5)
    for _ in range(2):
        assert (engine.buckets.count(full), engine.buckets.count(half)) == (0, 51)
        assert counts(engine) == {"full": 0, "half": 51}
        assert engine.buckets.page(full, "", "", 1000).streams == []
        assert len(engine.buckets.page(half, "", "", 1000).streams) == 51
        assert engine.housekeeping.run() > 0
    outcomes: list[object] = []
    engine.buckets.delete("half", outcomes.append)
    engine.buckets.delete("full", outcomes.append)
    assert isinstance(outcomes[0], BucketNotEmpty)
    assert outcomes[1] is full, "a bucket of which everything has expired is empty"


def counts(engine: Engine) -> dict[str, int]:
    return {bucket.id: count for bucket, count in engine.buckets.counts(10)}


@pytest.mark.slow
def test_times_survive_a_restart(mortal: Mortal) -> None:
    mortal.client.put("/bucket")
    mortal.client.put("/bucket/a", headers=TEXT)
    mortal.client.post("/bucket/a", headers=TEXT, content=b"one")
    before = mortal.client.get("/bucket/streams").json()
    mortal.restart(kill=True)
    assert mortal.client.get("/bucket/streams").json() == before


# -- cost --------------------------------------------------------------------------------------


class CountingStreams(dict[str, Stream]):
    """Counts what is looked up."""

    lookups = 0

    def get(self, name: str, default: Any = None) -> Any:
        self.lookups += 1
        return super().get(name, default)


@pytest.mark.slow
def test_a_page_costs_what_is_on_it() -> None:
    """100,000 streams in one bucket: a page of 10 looks at 11."""
    engine = Engine(MemoryStorage(), VirtualClock())
    engine.buckets.create("bucket", lambda _: None)
    outcomes: list[object] = []
    for number in range(100_000):
        engine.create(f"/bucket/{number:06d}", Create(), outcomes.append)
    bucket = engine.buckets.find("bucket")
    assert len(bucket.ids) == 100_000
    counting = CountingStreams(engine.streams)
    engine.streams = counting
    page = engine.buckets.page(bucket, "05", "050003", 10)
    assert [stream.state.name for stream in page.streams] == [
        f"/bucket/{number:06d}" for number in range(50_004, 50_014)
    ]
    assert page.has_more
    assert counting.lookups == 11


@given(st.lists(st.tuples(st.booleans(), st.text(max_size=3)), max_size=200), st.text(max_size=3))
def test_sorted_ids_are_a_sorted_set(changes: list[tuple[bool, str]], start: str) -> None:
    ids, model = SortedIds(), set[str]()
    for adds, id in changes:
        (ids.add if adds else ids.discard)(id)
        (model.add if adds else model.discard)(id)
    assert len(ids) == len(model)
    assert list(ids.after(start)) == sorted(id for id in model if id > start)
    assert list(ids.after(start, inclusive=True)) == sorted(id for id in model if id >= start)


def test_sorted_ids_stay_in_order_through_many_changes() -> None:
    ids = SortedIds(f"{number:05d}" for number in range(0, 10_000, 2))
    for number in range(1, 10_000, 2):
        ids.add(f"{number:05d}")
    for number in range(2_000, 8_000):
        ids.discard(f"{number:05d}")
    expected = [f"{n:05d}" for n in range(10_000) if not 2_000 <= n < 8_000]
    assert list(ids.after("", inclusive=True)) == expected
    assert list(ids.after("05000")) == expected[2_000:]
