"""Snapshots: publishing, finding, reading, replacing, and what they do to older offsets."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

import httpx
import pytest

from headrace.http.cors import EXPOSED_HEADERS
from headrace.testing.waiting import eventually
from tests.buckets.api import CLOSE, OCTETS, Mortal
from tests.conftest import Serve
from tests.http.helpers import client_of, problem_of

PAST = "9999999999999999_9999999999999999"
START = "0000000000000000_0000000000000000"


def digest_of(data: bytes) -> str:
    return f"sha-256=:{b64encode(sha256(data).digest()).decode()}:"


def filled(api: httpx.Client, path: str, *messages: bytes) -> list[str]:
    """A stream of these messages; the offsets before the first and after each."""
    offsets = [api.put(path, headers=OCTETS).headers["stream-next-offset"]]
    for message in messages:
        answer = api.post(path, headers=OCTETS, content=message)
        offsets.append(answer.headers["stream-next-offset"])
    return offsets


def publish(
    api: httpx.Client, path: str, offset: str, blob: bytes, **headers: str
) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return api.put(f"{path}/snapshot/{offset}", headers=named, content=blob)


def test_a_snapshot_is_published_found_and_read(api: httpx.Client, bucket: str) -> None:
    path = f"{bucket}/doc"
    offsets = filled(api, path, b"one", b"two", b"three")
    assert "stream-snapshot-offset" not in api.head(path).headers
    missing = api.get(f"{path}/snapshot")
    assert (missing.status_code, problem_of(missing)) == (404, "snapshot-not-found")

    published = publish(api, path, offsets[2], b"one+two", Content_Type="text/x-folded")
    assert (published.status_code, published.content) == (204, b"")
    assert published.headers["repr-digest"] == digest_of(b"one+two")

    assert api.head(path).headers["stream-snapshot-offset"] == offsets[2]
    redirect = api.get(f"{path}/snapshot")
    assert redirect.status_code == 307
    assert redirect.headers["location"] == str(api.base_url.join(f"{path}/snapshot/{offsets[2]}"))
    snapshot = api.get(redirect.headers["location"])
    assert (snapshot.status_code, snapshot.content) == (200, b"one+two")
    assert snapshot.headers["content-type"] == "text/x-folded"
    assert snapshot.headers["stream-snapshot-offset"] == offsets[2]
    assert snapshot.headers["stream-next-offset"] == offsets[2]
    assert snapshot.headers["stream-up-to-date"] == "false", "three follows"
    assert snapshot.headers["repr-digest"] == digest_of(b"one+two")
    assert api.head(f"{path}/snapshot/{offsets[2]}").headers["content-type"] == "text/x-folded"
    assert api.head(f"{path}/snapshot").status_code == 307

    publish(api, path, offsets[3], b"all")
    latest = api.get(f"{path}/snapshot", follow_redirects=True)
    assert (latest.content, latest.headers["content-type"]) == (b"all", "application/octet-stream")
    assert latest.headers["stream-up-to-date"] == "true"


@pytest.mark.parametrize("offset", ["-1", "now", "x", "1", "0_0", "%2D1", "12345678901234567_0"])
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_what_is_no_offset_names_no_snapshot(
    api: httpx.Client, bucket: str, method: str, offset: str
) -> None:
    filled(api, f"{bucket}/doc", b"one")
    refused = api.request(method, f"{bucket}/doc/snapshot/{offset}", content=b"x")
    assert (refused.status_code, problem_of(refused)) == (400, "invalid-offset")


def test_where_a_snapshot_may_be_published(api: httpx.Client, bucket: str) -> None:
    path = f"{bucket}/doc"
    offsets = filled(api, path, b"one", b"two", b"three")
    inside = "0000000000000001_0000000000000004"
    other = "0000000000000002_0000000000000003"
    for offset in (inside, other):
        refused = publish(api, path, offset, b"x")
        assert (refused.status_code, problem_of(refused)) == (400, "invalid-offset")
    refused = publish(api, path, PAST, b"x")
    assert (refused.status_code, problem_of(refused)) == (409, "offset-beyond-tail")
    assert publish(api, path, offsets[1], b"x").status_code == 204
    refused = publish(api, path, offsets[0], b"x")
    assert (refused.status_code, problem_of(refused)) == (410, "offset-trimmed")
    assert refused.headers["stream-next-offset"] == offsets[1]
    assert publish(api, path, offsets[1], b"again").status_code == 204, "the same offset replaces"
    assert api.get(f"{path}/snapshot/{offsets[1]}").content == b"again"
    assert publish(api, path, offsets[3], b"").status_code == 204, "a snapshot may be empty"
    assert api.get(f"{path}/snapshot/{offsets[3]}").content == b""
    assert publish(api, f"{bucket}/none", offsets[1], b"x").status_code == 404
    assert publish(api, "/no-such-bucket/x", offsets[1], b"x").status_code == 404
    for sub in ("snapshot", f"snapshot/{offsets[1]}", "bootstrap"):
        assert api.get(f"{bucket}/none/{sub}").status_code == 404
        assert api.get(f"/no-such-bucket/x/{sub}").status_code == 404
        assert api.get(f"{bucket}/a..b/{sub}").status_code == 400
    assert api.get(f"{path}/other").status_code == 404
    assert api.get(f"{path}/snapshot/{offsets[1]}/x").status_code == 404
    assert api.post(f"{path}/snapshot/{offsets[1]}").status_code == 405
    assert api.put(f"{path}/snapshot").status_code == 405
    assert api.put(f"{path}/bootstrap").status_code == 405
    refused = publish(api, path, offsets[3], b"x", Content_Type="nonsense")
    assert refused.status_code == 400


def test_an_offset_may_be_percent_encoded(api: httpx.Client, bucket: str) -> None:
    path = f"{bucket}/doc"
    offsets = filled(api, path, b"one")
    encoded = offsets[1].replace("_", "%5F")
    assert publish(api, path, encoded, b"x").status_code == 204
    assert api.get(f"{path}/snapshot/{encoded}").content == b"x"


def test_older_offsets_are_gone_in_every_mode_of_reading(api: httpx.Client, bucket: str) -> None:
    path = f"{bucket}/doc"
    offsets = filled(api, path, b"one", b"two", b"three")
    publish(api, path, offsets[2], b"one+two")
    for offset in ("-1", offsets[0], offsets[1], None):
        for live in (None, "long-poll", "sse"):
            if offset is None and live is not None:
                continue
            params = {k: v for k, v in (("offset", offset), ("live", live)) if v is not None}
            gone = api.get(path, params=params)
            assert (gone.status_code, problem_of(gone)) == (410, "offset-trimmed"), params
            assert gone.headers["stream-next-offset"] == offsets[2]
            assert gone.json()["earliest_offset"] == offsets[2]
    kept = api.get(path, params={"offset": offsets[2]})
    assert (kept.status_code, kept.content) == (200, b"three"), "never the snapshot's bytes"
    assert api.get(path, params={"offset": "now"}).status_code == 200
    api.put(f"{bucket}/fork", headers={"Stream-Forked-From": path})
    api.delete(path)
    deleted = api.get(path, params={"offset": offsets[2]})
    assert (deleted.status_code, problem_of(deleted)) == (410, "stream-deleted")


def test_a_snapshot_of_nothing_takes_the_place_of_the_beginning(
    api: httpx.Client, bucket: str
) -> None:
    path = f"{bucket}/doc"
    offsets = filled(api, path)
    assert publish(api, path, offsets[0], b"initial").status_code == 204
    api.post(path, headers=OCTETS, content=b"one")
    assert api.get(path, params={"offset": "-1"}).status_code == 410
    assert api.get(path, params={"offset": offsets[0]}).content == b"one"


def test_a_replaced_snapshot_is_gone_and_the_latest_stays(api: httpx.Client, bucket: str) -> None:
    path = f"{bucket}/doc"
    offsets = filled(api, path, b"one", b"two")
    publish(api, path, offsets[1], b"1")
    kept = api.delete(f"{path}/snapshot/{offsets[1]}")
    assert (kept.status_code, problem_of(kept)) == (409, "snapshot-in-use")
    publish(api, path, offsets[2], b"2")
    for method in ("GET", "DELETE"):
        gone = api.request(method, f"{path}/snapshot/{offsets[1]}")
        assert (gone.status_code, problem_of(gone)) == (404, "snapshot-not-found")
    assert api.delete(f"{path}/snapshot/{PAST}").status_code == 404
    assert api.get(f"{path}/snapshot/{offsets[2]}").content == b"2"


def test_compare_and_set(api: httpx.Client, bucket: str) -> None:
    path = f"{bucket}/doc"
    offsets = filled(api, path, b"one", b"two")

    def attempt(offset: str, blob: bytes, match: str) -> int:
        return publish(api, path, offset, blob, Stream_Snapshot_Match=match).status_code

    assert attempt(offsets[1], b"a", offsets[1]) == 409, "there is none yet"
    assert attempt(offsets[1], b"a", "-1") == 204
    assert attempt(offsets[1], b"b", "-1") == 409
    assert attempt(offsets[1], b"b", digest_of(b"x")) == 409
    assert attempt(offsets[1], b"b", digest_of(b"a")) == 204, "the same offset, another snapshot"
    refused = publish(api, path, offsets[2], b"c", Stream_Snapshot_Match=digest_of(b"a"))
    assert (refused.status_code, problem_of(refused)) == (409, "snapshot-mismatch")
    assert api.get(f"{path}/snapshot/{offsets[1]}").content == b"b", "nothing changed"
    assert attempt(offsets[2], b"c", offsets[1]) == 204


def test_a_closed_stream_takes_snapshots(api: httpx.Client, bucket: str) -> None:
    path = f"{bucket}/doc"
    offsets = filled(api, path, b"one", b"two")
    api.post(path, headers=CLOSE)
    assert publish(api, path, offsets[2], b"both").status_code == 204
    rest = api.get(path, params={"offset": offsets[2]})
    assert (rest.content, rest.headers["stream-closed"]) == (b"", "true")


@pytest.mark.slow
def test_looking_at_a_snapshot_or_bootstrap_does_not_renew_the_ttl(http: httpx.Client) -> None:
    http.put("/looked-at")
    path = "/looked-at/doc"
    offset = http.put(path, headers=OCTETS | {"Stream-TTL": "1"}).headers["stream-next-offset"]
    publish(http, path, offset, b"blob")
    for below in (f"snapshot/{offset}", "bootstrap"):
        assert http.head(f"{path}/{below}").status_code == 200
    eventually(
        lambda: (
            {
                http.head(f"{path}/{below}").status_code
                for below in (f"snapshot/{offset}", "bootstrap")
            }
            == {404}
        ),
        "the stream has expired",
    )


def test_producers_and_sequence_go_on_behind_a_snapshot(api: httpx.Client, bucket: str) -> None:
    path = f"{bucket}/doc"
    api.put(path, headers=OCTETS)
    producer = {"Producer-Id": "p", "Producer-Epoch": "0"}
    first = api.post(path, headers=OCTETS | producer | {"Producer-Seq": "0"}, content=b"one")
    publish(api, path, first.headers["stream-next-offset"], b"folded")
    again = api.post(path, headers=OCTETS | producer | {"Producer-Seq": "0"}, content=b"one")
    assert again.status_code == 204
    assert again.headers["stream-next-offset"] == first.headers["stream-next-offset"]
    following = api.post(path, headers=OCTETS | producer | {"Producer-Seq": "1"}, content=b"two")
    assert following.status_code == 200


def test_a_fork_inherits_snapshot_and_trim_offset(api: httpx.Client, bucket: str) -> None:
    path = f"{bucket}/doc"
    offsets = filled(api, path, b"one", b"two", b"three")
    early = {"Stream-Forked-From": path, "Stream-Fork-Offset": offsets[3]}
    assert api.put(f"{bucket}/early", headers=early).status_code == 201
    publish(api, path, offsets[2], b"one+two")

    below = {"Stream-Forked-From": path, "Stream-Fork-Offset": offsets[1]}
    refused = api.put(f"{bucket}/below", headers=below)
    assert (refused.status_code, problem_of(refused)) == (410, "offset-trimmed")
    at = {"Stream-Forked-From": path, "Stream-Fork-Offset": offsets[2]}
    assert api.put(f"{bucket}/at", headers=at).status_code == 201
    late = {"Stream-Forked-From": path}
    assert api.put(f"{bucket}/late", headers=late).status_code == 201

    assert api.get(f"{bucket}/early").content == b"onetwothree", "forked before the snapshot"
    assert "stream-snapshot-offset" not in api.head(f"{bucket}/early").headers
    for fork, rest in (("at", b""), ("late", b"three")):
        fork_path = f"{bucket}/{fork}"
        assert api.head(fork_path).headers["stream-snapshot-offset"] == offsets[2]
        assert api.get(fork_path).status_code == 410
        assert api.get(fork_path, params={"offset": offsets[2]}).content == rest
        assert api.get(f"{fork_path}/snapshot", follow_redirects=True).content == b"one+two"
    # What the source publishes next is its own business.
    publish(api, path, offsets[3], b"all three")
    api.delete(path)
    assert api.get(f"{bucket}/late/snapshot", follow_redirects=True).content == b"one+two"
    assert api.get(f"{bucket}/late", params={"offset": offsets[2]}).content == b"three"
    assert api.get(f"{bucket}/early").content == b"onetwothree"


def test_a_snapshot_over_the_limit_is_refused(serve: Serve) -> None:
    with client_of(serve(DS_LIMITS__MAX_SNAPSHOT_BYTES="10")) as client:
        client.put("/bucket")
        offsets = filled(client, "/bucket/doc", b"one")
        refused = publish(client, "/bucket/doc", offsets[1], b"x" * 11)
        assert (refused.status_code, problem_of(refused)) == (413, "snapshot-too-large")
        assert refused.json()["limit_bytes"] == 10
        assert publish(client, "/bucket/doc", offsets[1], b"x" * 10).status_code == 204


def test_snapshots_count_as_memory_and_make_room(serve: Serve) -> None:
    server = serve(DS_LIMITS__MAX_MEMORY_BYTES="1000", DS_LIMITS__MAX_STREAM_BYTES="600")
    with client_of(server) as client:
        client.put("/bucket")
        offsets = filled(client, "/bucket/doc", b"x" * 500)
        assert publish(client, "/bucket/doc", offsets[1], b"x" * 501).status_code == 413
        full = client.post("/bucket/doc", headers=OCTETS, content=b"x" * 200)
        assert problem_of(full) == "stream-full"
        assert publish(client, "/bucket/doc", offsets[1], b"x" * 400).status_code == 204
        for _ in range(3):
            tail = client.post("/bucket/doc", headers=OCTETS, content=b"x" * 500)
            assert tail.status_code == 204, "the trim offset made room"
            assert (
                publish(
                    client, "/bucket/doc", tail.headers["stream-next-offset"], b"x" * 90
                ).status_code
                == 204
            )
        metrics = client.get("/metrics").text
        assert "headrace_stored_bytes 90.0" in metrics


def test_a_large_snapshot_comes_whole(api: httpx.Client, bucket: str) -> None:
    path = f"{bucket}/doc"
    offsets = filled(api, path, b"one")
    blob = bytes(range(256)) * 4096 * 3 + b"end"
    assert publish(api, path, offsets[1], blob).status_code == 204
    read = api.get(f"{path}/snapshot/{offsets[1]}")
    assert read.content == blob
    assert read.headers["repr-digest"] == digest_of(blob)


def test_browsers_may_use_the_headers_of_snapshots(api: httpx.Client) -> None:
    preflight = api.options("/bucket/x/snapshot/y")
    assert "Stream-Snapshot-Match" in preflight.headers["access-control-allow-headers"]
    exposed = EXPOSED_HEADERS.decode().split(", ")
    assert {"Stream-Snapshot-Offset", "Repr-Digest"} <= set(exposed)


@pytest.mark.slow
@pytest.mark.parametrize("kill", [True, False])
def test_snapshots_survive_a_restart(mortal: Mortal, kill: bool) -> None:
    client = mortal.client
    client.put("/bucket")
    # Enough for segments to fill and checkpoints to run, between and behind the snapshots.
    offsets = filled(client, "/bucket/doc", *[bytes([65 + n % 26]) * 9_000 for n in range(30)])
    publish(client, "/bucket/doc", offsets[10], b"first" * 1000, Content_Type="text/a")
    publish(client, "/bucket/doc", offsets[20], b"second" * 50_000, Content_Type="text/b")
    client.put("/bucket/fork", headers={"Stream-Forked-From": "/bucket/doc"})
    publish(client, "/bucket/doc", offsets[29], b"third", Content_Type="text/c")
    for _ in range(2):
        mortal.restart(kill=kill)
        client = mortal.client
        assert client.get("/bucket/doc").status_code == 410
        assert client.head("/bucket/doc").headers["stream-snapshot-offset"] == offsets[29]
        latest = client.get("/bucket/doc/snapshot", follow_redirects=True)
        assert (latest.content, latest.headers["content-type"]) == (b"third", "text/c")
        rest = client.get("/bucket/doc", params={"offset": offsets[29]})
        assert rest.content == b"D" * 9_000
        inherited = client.get("/bucket/fork/snapshot", follow_redirects=True)
        assert inherited.content == b"second" * 50_000
        fork = client.get("/bucket/fork", params={"offset": offsets[20]})
        assert len(fork.content) == 90_000
        blobs = [path for path in mortal.data.glob("snapshots/*/*") if path.is_file()]
        assert len(blobs) == 2, "replaced blobs are gone"
