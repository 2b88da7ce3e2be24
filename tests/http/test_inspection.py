"""`__ds/streams`: what a stream is besides its bytes, told without effect on it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from headrace.testing.waiting import eventually
from tests.conftest import Serve
from tests.http.helpers import CLOSE, JSON, TEXT, client_of, problem_of
from tests.subscriptions.api import fresh

ROOT = "/v1/stream"
LOOK = f"{ROOT}/__ds/streams"


@pytest.fixture
def name() -> str:
    return fresh("looked/at")


def look(http: httpx.Client, name: str) -> dict[str, Any]:
    answer = http.get(f"{LOOK}/{name}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    document: dict[str, Any] = answer.json()
    return document


def produce(http: httpx.Client, name: str, id: str, epoch: int, seq: int) -> str:
    headers = {"Producer-Id": id, "Producer-Epoch": str(epoch), "Producer-Seq": str(seq)}
    answer = http.post(f"{ROOT}/{name}", headers=TEXT | headers, content="x")
    assert answer.status_code == 200, answer.text
    return str(answer.headers["stream-next-offset"])


def test_a_stream_is_described_as_head_describes_it_and_further(
    http: httpx.Client, name: str
) -> None:
    http.put(f"{ROOT}/{name}", headers=JSON, content='[{"a":1},{"b":2}]')
    head = http.head(f"{ROOT}/{name}")
    about = look(http, name)
    assert about["stream"] == name
    assert about["content_type"] == "application/json"
    assert about["tail_offset"] == head.headers["stream-next-offset"]
    assert about["earliest_offset"] == f"{0:016d}_{0:016d}"
    assert about["closed"] is False
    assert 0 <= about["now_ms"] - about["created_at_ms"] < 60_000
    assert (about["ttl_secs"], about["expires_at_ms"], about["live_readers"]) == (None, None, 0)
    assert (about["forked_from"], about["fork_count"], about["forks"]) == (None, 0, [])
    assert (about["producers"], about["subscriptions"]) == ([], [])
    http.post(f"{ROOT}/{name}", headers=CLOSE)
    assert look(http, name)["closed"] is True


def test_producers_stand_with_epoch_sequence_and_the_offset_of_their_last_append(
    http: httpx.Client, name: str
) -> None:
    http.put(f"{ROOT}/{name}", headers=TEXT)
    produce(http, name, "one", 3, 0)
    one = produce(http, name, "one", 3, 1)
    other = produce(http, name, "other", 0, 0)
    assert look(http, name)["producer_count"] == 2
    assert look(http, name)["producers"] == [
        {"id": "one", "epoch": 3, "seq": 1, "offset": one},
        {"id": "other", "epoch": 0, "seq": 0, "offset": other},
    ]
    produce(http, name, "one", 4, 0)
    assert look(http, name)["producers"][0]["epoch"] == 4


def writers(http: httpx.Client, name: str, first: str, until: str) -> list[dict[str, Any]]:
    query = {"writers_from": first, "writers_until": until}
    answer = http.get(f"{LOOK}/{name}", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["writers"]
    return found


def test_the_producer_of_a_message_is_told_while_its_receipt_is_kept(
    http: httpx.Client, name: str
) -> None:
    http.put(f"{ROOT}/{name}", headers=TEXT)
    first = produce(http, name, "one", 3, 0)
    nobody = http.post(f"{ROOT}/{name}", headers=TEXT, content="x").headers["stream-next-offset"]
    second = produce(http, name, "other", 0, 0)
    third = produce(http, name, "one", 3, 1)
    start = f"{0:016d}_{0:016d}"
    assert writers(http, name, start, third) == [
        {"next_offset": first, "id": "one", "epoch": 3, "seq": 0},
        {"next_offset": second, "id": "other", "epoch": 0, "seq": 0},
        {"next_offset": third, "id": "one", "epoch": 3, "seq": 1},
    ]
    assert [one["next_offset"] for one in writers(http, name, nobody, second)] == [second]
    for seq in range(2, 80):
        last = produce(http, name, "one", 3, seq)
    told = [one["seq"] for one in writers(http, name, start, last) if one["id"] == "one"]
    assert told == list(range(16, 80)), "a producer keeps its last 64 receipts"
    produce(http, name, "one", 4, 0)
    assert [one["id"] for one in writers(http, name, start, last)] == ["other"]


def test_of_an_append_of_several_messages_the_last_is_certain(
    http: httpx.Client, name: str
) -> None:
    http.put(f"{ROOT}/{name}", headers=JSON)
    headers = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
    answer = http.post(f"{ROOT}/{name}", headers=JSON | headers, content="[1,2,3]")
    end = answer.headers["stream-next-offset"]
    assert writers(http, name, f"{0:016d}_{0:016d}", end) == [
        {"next_offset": end, "id": "p", "epoch": 0, "seq": 0}
    ]


def test_a_close_that_carries_nothing_has_written_nothing(http: httpx.Client, name: str) -> None:
    http.put(f"{ROOT}/{name}", headers=TEXT)
    http.put(f"{ROOT}/{name}-other", headers=TEXT)
    closing = {"Producer-Id": "closer", "Producer-Epoch": "0", **CLOSE}
    for stream, seq in ((name, 1), (f"{name}-other", 0)):
        if seq:
            produce(http, stream, "closer", 0, 0)
        end = http.post(f"{ROOT}/{stream}", headers=TEXT, content="x").headers["stream-next-offset"]
        answer = http.post(f"{ROOT}/{stream}", headers=closing | {"Producer-Seq": str(seq)})
        assert answer.is_success, answer.text
        told = writers(http, stream, f"{0:016d}_{0:016d}", end)
        assert end not in [one["next_offset"] for one in told], "the last message is nobody's"
        assert len(told) == seq


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("?writers_from=-1&writers_until=now", "invalid-offset"),
        (f"?writers_from={0:016d}_{0:016d}", "invalid-request"),
        (f"?writers_until={0:016d}_{0:016d}", "invalid-request"),
        (f"?writers_from={0:016d}_{0:016d}&writers_until={1001:016d}_{1:016d}", "invalid-request"),
        (f"?writers_from={2:016d}_{0:016d}&writers_until={1:016d}_{1:016d}", "invalid-request"),
    ],
)
def test_a_stretch_that_is_none_is_refused(
    http: httpx.Client, name: str, query: str, problem: str
) -> None:
    http.put(f"{ROOT}/{name}", headers=TEXT)
    assert problem_of(http.get(f"{LOOK}/{name}{query}")) == problem


def test_forks_are_told_by_their_source_and_name_it(http: httpx.Client, name: str) -> None:
    http.put(f"{ROOT}/{name}", headers=TEXT, content="before")
    point = http.head(f"{ROOT}/{name}").headers["stream-next-offset"]
    for fork in ("fork-a", "fork-b"):
        http.put(f"{ROOT}/{name}-{fork}", headers={"Stream-Forked-From": f"{ROOT}/{name}"})
    source = look(http, name)
    assert [fork["stream"] for fork in source["forks"]] == [f"{name}-fork-a", f"{name}-fork-b"]
    assert {fork["offset"] for fork in source["forks"]} == {point}
    assert look(http, f"{name}-fork-a")["forked_from"] == {"stream": name, "offset": point}
    http.delete(f"{ROOT}/{name}-fork-a")
    assert [fork["stream"] for fork in look(http, name)["forks"]] == [f"{name}-fork-b"]
    # Another stream of that name is no fork.
    http.put(f"{ROOT}/{name}-fork-a", headers=TEXT)
    assert [fork["stream"] for fork in look(http, name)["forks"]] == [f"{name}-fork-b"]


def test_a_deleted_source_of_forks_is_gone_here_too(http: httpx.Client, name: str) -> None:
    http.put(f"{ROOT}/{name}", headers=TEXT)
    http.put(f"{ROOT}/{name}-fork", headers={"Stream-Forked-From": f"{ROOT}/{name}"})
    http.delete(f"{ROOT}/{name}")
    assert problem_of(http.get(f"{LOOK}/{name}")) == "stream-deleted"
    assert look(http, f"{name}-fork")["forked_from"]["stream"] == name


def test_looking_does_not_renew_a_ttl(http: httpx.Client, name: str) -> None:
    http.put(f"{ROOT}/{name}", headers=TEXT | {"Stream-TTL": "600"})
    first = look(http, name)
    assert first["ttl_secs"] == 600
    assert first["expires_at_ms"] - first["now_ms"] <= 600_000
    assert look(http, name)["expires_at_ms"] == first["expires_at_ms"]


def test_subscriptions_stand_with_their_lease(http: httpx.Client, name: str) -> None:
    wake, id = fresh("wakes"), fresh("subscription").replace("/", "-")
    for stream in (wake, name):
        http.put(f"{ROOT}/{stream}", headers=JSON)
    config = {"type": "pull-wake", "streams": [name], "wake_stream": wake, "lease_ttl_ms": 60_000}
    created = http.put(f"{ROOT}/__ds/subscriptions/{id}", json=config)
    assert created.status_code == 201, created.text
    (idle,) = look(http, name)["subscriptions"]
    assert (idle["id"], idle["type"], idle["status"]) == (id, "pull-wake", "active")
    assert (idle["has_pending"], idle["lease_until_ms"]) == (False, None)
    http.post(f"{ROOT}/{name}", headers=JSON, json={"n": 1})
    claimed = http.post(f"{ROOT}/__ds/subscriptions/{id}/claim", json={"worker": "w1"})
    assert claimed.status_code == 200, claimed.text
    about = look(http, name)
    (held,) = about["subscriptions"]
    assert (held["holder"], held["has_pending"]) == ("w1", True)
    assert 0 < held["lease_until_ms"] - about["now_ms"] <= 60_000
    http.delete(f"{ROOT}/__ds/subscriptions/{id}")
    assert look(http, name)["subscription_count"] == 0


def test_many_streams_are_described_in_brief_and_missing_ones_left_out(
    http: httpx.Client, name: str
) -> None:
    names = [f"{name}/{n}" for n in range(3)]
    for one in names:
        http.put(f"{ROOT}/{one}", headers=TEXT, content="hello")
    answer = http.get(LOOK, params={"name": [*names, f"{name}/missing"]}).json()
    assert [found["stream"] for found in answer["streams"]] == names
    assert "producers" not in answer["streams"][0]
    assert answer["now_ms"] > 0


def test_names_are_read_as_everywhere(http: httpx.Client, name: str) -> None:
    odd = f"{name}/ü & <b>"
    http.put(f"{ROOT}/{odd}", headers=TEXT)
    assert look(http, odd)["stream"] == odd
    found = http.get(LOOK, params={"name": odd}).json()["streams"]
    assert [stream["stream"] for stream in found] == [odd]


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("", "invalid-request"),
        ("?names=a", "invalid-request"),
        ("?" + "&".join(["name=a"] * 201), "invalid-request"),
        ("/", "invalid-name"),
        ("/a/../b%2F..", "invalid-name"),
        ("/%ff", "invalid-name"),
        ("/never-created", "stream-not-found"),
    ],
)
def test_what_names_no_stream_is_refused(http: httpx.Client, query: str, problem: str) -> None:
    assert problem_of(http.get(LOOK + query)) == problem


def test_it_is_read_only(http: httpx.Client) -> None:
    for method in ("PUT", "POST", "DELETE"):
        answer = http.request(method, f"{LOOK}/a")
        assert problem_of(answer) == "method-not-allowed"
        assert answer.headers["allow"] == "GET, HEAD, OPTIONS"


def test_the_resource_takes_no_other_path_of_the_control_surface(http: httpx.Client) -> None:
    assert http.get(f"{ROOT}/__ds/streamsx").status_code == 404
    assert http.get(f"{ROOT}/__ds/jwks.json").status_code == 200


def test_forks_and_producers_are_known_after_a_restart(serve: Serve, name: str) -> None:
    settings = {"DS_STORAGE__MODE": "file-durable", "DS_STORAGE__DATA_DIR": "streams"}
    first = serve(**settings)
    with client_of(first) as client:
        client.put(f"{ROOT}/{name}", headers=TEXT)
        offset = produce(client, name, "one", 0, 0)
        client.put(f"{ROOT}/{name}-fork", headers={"Stream-Forked-From": f"{ROOT}/{name}"})
    assert first.stop() == 0
    with client_of(serve(**settings)) as client:
        about = look(client, name)
        assert [fork["stream"] for fork in about["forks"]] == [f"{name}-fork"]
        assert about["producers"] == [{"id": "one", "epoch": 0, "seq": 0, "offset": offset}]


def test_buckets_are_named_with_the_number_of_their_streams(http: httpx.Client) -> None:
    bucket = fresh("inspected")
    assert http.put(f"/{bucket}").status_code == 201
    http.put(f"/{bucket}/one", headers=TEXT, content="x")
    answer = http.get(f"{ROOT}/__ds/buckets").json()
    (told,) = (one for one in answer["buckets"] if one["bucket_id"] == bucket)
    assert told["streams"] == 1
    assert told["created_at_ms"] == http.get(f"/{bucket}").json()["created_at_ms"]
    assert answer["bucket_count"] == len(answer["buckets"])


def test_a_bucket_says_how_far_its_feed_is(http: httpx.Client) -> None:
    bucket = fresh("inspected")
    http.put(f"/{bucket}")

    def cursor() -> str:
        told = http.get(f"{ROOT}/__ds/buckets").json()["buckets"]
        return next(str(one["next_offset"]) for one in told if one["bucket_id"] == bucket)

    before = cursor()
    http.put(f"/{bucket}/one", headers=TEXT, content="x")
    eventually(lambda: cursor() != before, "the change is in the feed")
    feed = http.get(f"/{bucket}/streams", params={"changes_from": before})
    assert [line["stream_id"] for line in feed.json()] == ["one"]
    assert feed.headers["stream-next-offset"] == cursor()


def test_a_stream_of_a_bucket_is_described_under_its_bucket(http: httpx.Client) -> None:
    bucket = fresh("inspected")
    http.put(f"/{bucket}")
    http.put(f"/{bucket}/one", headers=TEXT, content="x")
    http.put(f"/{bucket}/two", headers={"Stream-Forked-From": f"/{bucket}/one"})
    about = http.get(f"{ROOT}/__ds/buckets/{bucket}/one").json()
    assert about["stream"] == f"/{bucket}/one"
    assert [fork["stream"] for fork in about["forks"]] == [f"/{bucket}/two"]
    brief = http.get(LOOK, params={"name": [f"/{bucket}/two", f"/{bucket}"]}).json()["streams"]
    assert [one["stream"] for one in brief] == [f"/{bucket}/two"]
    assert brief[0]["forked_from"]["stream"] == f"/{bucket}/one"
    for path, problem in (
        (f"{bucket}/none", "stream-not-found"),
        ("nobody/one", "bucket-not-found"),
        (f"{bucket}/one/more", "not-found"),
    ):
        assert problem_of(http.get(f"{ROOT}/__ds/buckets/{path}")) == problem
