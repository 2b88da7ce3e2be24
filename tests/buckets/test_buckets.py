"""Buckets: made explicitly, described, deleted when empty, and durable like streams."""

from __future__ import annotations

import httpx
import pytest

from tests.buckets.api import CLOSE, JSON, TEXT, Mortal
from tests.http.helpers import problem_of


def test_a_bucket_is_created_once_and_described(api: httpx.Client) -> None:
    created = api.put("/fresh-bucket")
    assert created.status_code == 201
    assert created.headers["location"] == f"{api.base_url}/fresh-bucket".replace(
        "//fresh", "/fresh"
    )
    again = api.put("/fresh-bucket")
    assert (again.status_code, problem_of(again)) == (409, "bucket-exists")
    described = api.get("/fresh-bucket")
    assert described.status_code == 200
    assert described.headers["content-type"] == "application/json"
    assert described.json()["bucket_id"] == "fresh-bucket"
    assert described.json()["streams"] == 0
    assert api.head("/fresh-bucket").status_code == 200
    assert api.delete("/fresh-bucket").status_code == 204
    gone = api.get("/fresh-bucket")
    assert (gone.status_code, problem_of(gone)) == (404, "bucket-not-found")
    assert api.delete("/fresh-bucket").status_code == 404
    assert api.put("/fresh-bucket").status_code == 201, "the id is free again"
    assert api.delete("/fresh-bucket").status_code == 204


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
@pytest.mark.parametrize(
    "bucket_id",
    ["abc", "a" * 65, "Abcd", "ab.cd", "ab%20cd", "b%C3%BCcher", "%2Fabc", "__ds", "ab~c"],
)
def test_an_invalid_bucket_id_is_refused(api: httpx.Client, method: str, bucket_id: str) -> None:
    refused = api.request(method, f"/{bucket_id}")
    assert (refused.status_code, problem_of(refused)) == (400, "invalid-name")
    assert api.request(method, f"/{bucket_id}/stream", headers=TEXT).status_code == 400
    assert api.request("GET", f"/{bucket_id}/streams").status_code == 400


@pytest.mark.parametrize("bucket_id", ["abcd", "a" * 64, "0_-9", "____", "v1234"])
def test_every_valid_bucket_id_is_taken(api: httpx.Client, bucket_id: str) -> None:
    assert api.put(f"/{bucket_id}").status_code == 201
    assert api.delete(f"/{bucket_id}").status_code == 204


@pytest.mark.parametrize("name", ["healthz", "readyz", "metrics"])
def test_names_of_the_server_itself_are_no_buckets(api: httpx.Client, name: str) -> None:
    assert api.put(f"/{name}").status_code == 405
    assert api.put(f"/{name}/stream").status_code == 404
    assert api.get(f"/{name}/streams").status_code == 404


def test_a_stream_does_not_bring_its_bucket(api: httpx.Client) -> None:
    for method in ("PUT", "POST", "GET", "HEAD", "DELETE"):
        answer = api.request(method, "/no-such-bucket/stream", headers=TEXT)
        assert answer.status_code == 404, method
        if method != "HEAD":
            assert problem_of(answer) == "bucket-not-found"
    assert api.get("/no-such-bucket/streams").status_code == 404
    assert api.get("/no-such-bucket").status_code == 404


def test_a_bucket_goes_only_when_it_is_empty(api: httpx.Client, bucket: str) -> None:
    api.put(f"{bucket}/a", headers=TEXT)
    api.put(f"{bucket}/b", headers={"Stream-Forked-From": f"{bucket}/a"})
    assert api.get(bucket).json()["streams"] == 2
    refused = api.delete(bucket)
    assert (refused.status_code, problem_of(refused)) == (409, "bucket-not-empty")
    assert api.delete(f"{bucket}/a").status_code == 204
    assert api.get(bucket).json()["streams"] == 1, "soft-deleted streams are not counted"
    assert api.delete(bucket).status_code == 409
    assert api.delete(f"{bucket}/b").status_code == 204
    assert api.get(bucket).json()["streams"] == 0
    assert api.delete(bucket).status_code == 204


def test_methods_that_make_no_sense_are_refused(api: httpx.Client, bucket: str) -> None:
    for path in (bucket, f"{bucket}/streams"):
        refused = api.post(path, content=b"x", headers=TEXT)
        assert (refused.status_code, problem_of(refused)) == (405, "method-not-allowed")
        assert "GET" in refused.headers["allow"]
    assert api.put(f"{bucket}/streams", headers=TEXT).status_code == 405


# -- streams below them ------------------------------------------------------------------------


def name_of(bucket: str, byte_count: int) -> str:
    """A stream id that makes `bucket/id` exactly so many bytes long."""
    return "x" * (byte_count - len(bucket))


@pytest.mark.parametrize(
    "stream_id",
    ["streams", "%73treams", "__ds", "__dsx", "a%2Fb", "a%00b", "a..b", "%2E%2E", "..a", "%ff"],
)
def test_an_invalid_stream_id_is_refused(api: httpx.Client, bucket: str, stream_id: str) -> None:
    for method in ("PUT", "POST", "GET", "DELETE"):
        answer = api.request(method, f"{bucket}/{stream_id}", headers=TEXT, content=b"x")
        if stream_id in ("streams", "%73treams"):
            assert answer.status_code == (200 if method == "GET" else 405)
        else:
            assert (answer.status_code, problem_of(answer)) == (400, "invalid-name"), method


def test_bucket_and_stream_together_are_at_most_122_bytes(api: httpx.Client, bucket: str) -> None:
    longest, too_long = name_of(bucket, 122), name_of(bucket, 123)
    assert api.put(f"{bucket}/{longest}", headers=TEXT).status_code == 201
    assert api.put(f"{bucket}/{too_long}", headers=TEXT).status_code == 400
    assert api.get(f"{bucket}/{too_long}").status_code == 400
    umlauts = "%C3%BC" * 61
    assert api.put(f"{bucket}/{umlauts}", headers=TEXT).status_code == 400, "bytes, not characters"
    assert api.put(f"{bucket}/").status_code == 400


@pytest.mark.parametrize(
    "stream_id", ["a", "%E6%B5%81", "a%20b", "a.b.c", ".", "a%0Ab", "snapshot", "bootstrap", "-1"]
)
def test_any_other_utf8_is_a_stream_id(api: httpx.Client, bucket: str, stream_id: str) -> None:
    # httpx would take a dot segment out of the path, as browsers do.
    path = f"{bucket}/{'%2E' if stream_id == '.' else stream_id}"
    created = api.put(path, headers=TEXT, content=b"one")
    assert created.status_code == 201
    assert api.get(path).content == b"one"
    assert api.get(created.headers["location"]).content == b"one"


def test_the_surfaces_never_meet(api: httpx.Client, bucket: str) -> None:
    other = f"{bucket}-other"
    api.put(other)
    paths = [f"{bucket}/same", f"{other}/same", f"/v1/stream{bucket}/same", "/v1/stream/same"]
    for path in paths:
        assert api.put(path, headers=TEXT, content=path.encode()).status_code == 201
    for path in paths:
        assert api.get(path).content == path.encode()
    # A name of the base surface cannot reach behind the bucket's own.
    assert api.get(f"/v1/stream/{bucket}/same").status_code == 400
    assert api.post(f"/v1/stream/{bucket}/same", headers=TEXT, content=b"x").status_code == 400
    assert api.get(f"/v1/stream/{bucket}").status_code == 400
    registry = api.get("/v1/stream/__registry__").json()
    announced = {message["key"] for message in registry}
    assert f"{bucket[1:]}/same" in announced, "the stream of the base surface"
    assert not [key for key in announced if key.startswith("/")]
    for path in paths:
        api.delete(path)


def test_the_base_protocol_works_below_a_bucket(api: httpx.Client, bucket: str) -> None:
    path = f"{bucket}/all"
    created = api.put(path, headers=JSON | {"Stream-TTL": "3600"})
    assert created.headers["location"].endswith(path)
    assert api.put(path, headers=JSON | {"Stream-TTL": "3600"}).status_code == 200
    assert api.put(path, headers=TEXT).status_code == 409
    producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
    assert api.post(path, headers=JSON | producer, content=b"[1,2]").status_code == 200
    assert api.post(path, headers=JSON | producer, content=b"[1,2]").status_code == 204
    head = api.head(path)
    assert (head.headers["stream-ttl"], head.headers["content-type"]) == (
        "3600",
        JSON["Content-Type"],
    )
    first = api.get(path, params={"offset": "-1"})
    assert first.json() == [1, 2]
    polled = api.get(
        path, params={"offset": first.headers["stream-next-offset"], "live": "long-poll"}
    )
    assert polled.status_code == 204
    with api.stream("GET", path, params={"offset": "-1", "live": "sse"}) as events:
        assert events.status_code == 200
        assert "event: data" in next(events.iter_lines())
    closed = api.post(path, headers=CLOSE)
    assert closed.status_code == 204
    assert api.post(path, headers=JSON, content=b"3").status_code == 409
    assert api.delete(path).status_code == 204
    assert api.get(path).status_code == 404


def test_forks_stay_within_their_bucket(api: httpx.Client, bucket: str) -> None:
    other = f"{bucket}-fork"
    api.put(other)
    api.put(f"{bucket}/source", headers=TEXT, content=b"one")
    fork = api.put(f"{bucket}/fork", headers={"Stream-Forked-From": f"{bucket}/source"})
    assert fork.status_code == 201
    assert api.get(f"{bucket}/fork").content == b"one"
    absolute = str(api.base_url.join(f"{bucket}/source"))
    assert api.put(f"{bucket}/fork-2", headers={"Stream-Forked-From": absolute}).status_code == 201
    for source in (f"{bucket}/source", "/v1/stream/x", f"{bucket}/source/x", f"{bucket}/a%2Fb"):
        where = other if source == f"{bucket}/source" else bucket
        refused = api.put(f"{where}/fork-3", headers={"Stream-Forked-From": source})
        assert refused.status_code == 400, source
    missing = api.put(f"{bucket}/fork-4", headers={"Stream-Forked-From": f"{bucket}/none"})
    assert missing.status_code == 404
    api.delete(f"{bucket}/source")
    gone = api.get(f"{bucket}/source")
    assert (gone.status_code, problem_of(gone)) == (410, "stream-deleted")


@pytest.mark.slow
@pytest.mark.parametrize("kill", [True, False])
def test_buckets_survive_a_restart(mortal: Mortal, kill: bool) -> None:
    for name in ("stay-full", "stay-empty", "gone-away"):
        assert mortal.client.put(f"/{name}").status_code == 201
    assert mortal.client.delete("/gone-away").status_code == 204
    for number in range(5):
        path = f"/stay-full/{number}"
        assert mortal.client.put(path, headers=TEXT, content=b"one").status_code == 201
    mortal.client.delete("/stay-full/3")
    mortal.restart(kill=kill)
    assert mortal.client.get("/stay-full").json()["streams"] == 4
    assert mortal.client.get("/stay-empty").json()["streams"] == 0
    assert mortal.client.get("/gone-away").status_code == 404
    assert mortal.client.get("/stay-full/2").content == b"one"
    listed = mortal.client.get("/stay-full/streams").json()["streams"]
    assert [stream["stream_id"] for stream in listed] == ["0", "1", "2", "4"]
    assert mortal.client.delete("/stay-full").status_code == 409
    assert mortal.client.delete("/stay-empty").status_code == 204
    assert mortal.client.put("/gone-away").status_code == 201
