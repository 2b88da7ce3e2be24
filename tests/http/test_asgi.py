"""The ASGI application, mounted in FastAPI under uvicorn: the same server below another path."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.server_queries import live_readers
from headrace.testing.sse_reader import EventStream, open_events
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.http.uvicorn import MOUNT, Uvicorn, assert_clean

METRICS = f"{MOUNT}/metrics"
BODY_BYTES = 1_000_000
TEXT = {"Content-Type": "text/plain"}
SETTINGS = {
    "DS_LIMITS__MAX_BODY_BYTES": str(BODY_BYTES),
    "DS_SERVER__LONG_POLL_TIMEOUT_SECS": "600",
    "DS_SERVER__SSE_RECONNECT_INTERVAL_SECS": "0",
}


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Uvicorn]:
    process = Uvicorn(tmp_path_factory.mktemp("uvicorn") / "log", **SETTINGS)
    yield process
    assert_clean(process, process.stop())


@pytest.fixture(scope="module")
def http(mounted: Uvicorn) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=mounted.url, timeout=DEADLINE_SECS) as client:
        yield client


@pytest.fixture
def path(stream: str) -> str:
    """A stream's path below the mount."""
    return MOUNT + stream


def follow(mounted: Uvicorn, path: str, offset: str = "-1") -> EventStream:
    return open_events(mounted.port, f"{path}?offset={offset}&live=sse")


def wait_for_readers(http: httpx.Client, mode: str, count: int) -> None:
    eventually(lambda: live_readers(http, mode, METRICS) == count, f"{count} {mode} readers")


@contextlib.contextmanager
def long_poll(mounted: Uvicorn, http: httpx.Client, path: str) -> Iterator[RawConnection]:
    wait_for_readers(http, "long-poll", 0)
    with RawConnection(mounted.port) as client:
        client.send(request_bytes("GET", f"{path}?offset=now&live=long-poll"))
        wait_for_readers(http, "long-poll", 1)
        yield client


# -- the protocol below a mount ----------------------------------------------------------------


@pytest.mark.parametrize("host", ['evil"<x>', "a b", "user@host", "host/path"])
def test_a_host_that_is_none_is_refused(mounted: Uvicorn, path: str, host: str) -> None:
    with RawConnection(mounted.port) as client:
        client.send(f"PUT {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n".encode())
        assert client.response().status == 400


def test_a_stream_is_created_appended_to_read_and_deleted(http: httpx.Client, path: str) -> None:
    assert http.put(path, content=b"a", headers=TEXT).status_code == 201
    assert http.post(path, content=b"b", headers=TEXT).status_code == 204
    answer = http.get(path)
    assert answer.content == b"ab"
    assert http.head(path).headers["Stream-Next-Offset"] == answer.headers["Stream-Next-Offset"]
    etag = {"If-None-Match": answer.headers["ETag"]}
    assert http.get(path, headers=etag).status_code == 304
    assert http.delete(path).status_code == 204
    assert http.get(path).status_code == 404


def test_the_stream_browser_is_below_the_mount(http: httpx.Client) -> None:
    page = http.get(f"{MOUNT}/ui", follow_redirects=True)
    assert str(page.url).endswith(f"{MOUNT}/ui/")
    assert "<title>Headrace</title>" in page.text
    assert http.get(f"{MOUNT}/ui/settings.json").json()["streamRoot"] == "/v1/stream"
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


@pytest.mark.parametrize("name", ["plain", "caf%C3%A9%20x", "a%25b", "a/b"])
def test_the_location_names_the_mount_path(
    mounted: Uvicorn, http: httpx.Client, path: str, name: str
) -> None:
    location = http.put(f"{path}/{name}", content=b"x", headers=TEXT).headers["Location"]
    assert location == f"{mounted.url}{path}/{name}"
    assert httpx.get(location).content == b"x"


def test_a_fork_names_its_source_with_the_mount_path(http: httpx.Client, path: str) -> None:
    http.put(path, content=b"inherited", headers=TEXT)
    fork = http.put(f"{path}/fork", headers={"Stream-Forked-From": path})
    assert fork.status_code == 201
    assert http.get(f"{path}/fork").content == b"inherited"


def test_a_source_without_the_mount_path_is_400(http: httpx.Client, path: str) -> None:
    http.put(path, headers=TEXT)
    source = path.removeprefix(MOUNT)
    fork = http.put(f"{path}/fork", headers={"Stream-Forked-From": source})
    assert fork.status_code == 400


def test_an_encoded_slash_in_the_query_and_name_survives_the_mount(
    mounted: Uvicorn, path: str
) -> None:
    with RawConnection(mounted.port) as raw:
        assert raw.request("PUT", f"{path}/a%2Fb", b"x", Content_Type="text/plain").status == 201
        assert raw.request("GET", f"{path}/a/b?offset=%2D1").body == b"x"


def test_bounded_reads_and_tails_work_below_the_mount(http: httpx.Client, path: str) -> None:
    http.put(path, headers=TEXT)
    end = http.post(path, content=b"one", headers=TEXT).headers["Stream-Next-Offset"]
    http.post(path, content=b"two", headers=TEXT)
    framed = http.get(path, params={"offset": "-1", "until": end, "format": "framed"})
    assert (framed.content[:4], framed.content[-3:]) == (b"HRM1", b"one")
    name = path.removeprefix(f"{MOUNT}/v1/stream/")
    query = {"streams": [{"stream": name, "from": end, "max_messages": 5}]}
    [tail] = http.post(f"{MOUNT}/v1/stream/__ds/tails", json=query).json()["streams"]
    assert (tail["messages"], tail["bytes"]) == (1, 3)


def test_the_host_application_answers_beside_the_mount(http: httpx.Client) -> None:
    assert http.get("/").json() == {"streams": "/streams/v1/stream/{name}"}
    assert http.get(f"{MOUNT}/healthz").text == "ok"
    assert http.get("/v1/stream/x").status_code == 404


def test_answers_carry_the_headers_for_browsers(http: httpx.Client, path: str) -> None:
    for answer in (http.put(path), http.get(path), http.get(f"{path}/absent")):
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_a_page_of_another_origin_changes_nothing(http: httpx.Client, path: str) -> None:
    """Which hosts are answered is the host application's matter; it knows the listener."""
    refused = http.put(path, headers={"Origin": "https://evil.example"})
    assert (refused.status_code, refused.json()["title"]) == (403, "Cross-origin request")
    assert http.head(path).status_code == 404
    own = f"http://127.0.0.1:{http.base_url.port}"
    assert http.put(path, headers={"Origin": own}).status_code == 201
    assert http.get(path, headers={"Host": "streams.example"}).status_code == 200


# -- live reads --------------------------------------------------------------------------------


def test_events_arrive_as_they_are_appended(
    mounted: Uvicorn, http: httpx.Client, path: str
) -> None:
    http.put(path, content=b"first", headers=TEXT)
    with follow(mounted, path) as events:
        assert events.batch().data == "first"
        for number in range(20):
            http.post(path, content=b"%d" % number, headers=TEXT)
            assert events.batch().data == str(number)
        http.post(path, headers={"Stream-Closed": "true"})
        [last] = events.rest()
    assert last.control["streamClosed"] is True


def test_a_delete_ends_the_events(mounted: Uvicorn, http: httpx.Client, path: str) -> None:
    http.put(path, headers=TEXT)
    with follow(mounted, path) as events:
        events.batch()
        http.delete(path)
        assert events.rest() == []


@pytest.mark.parametrize(("end", "status"), [("append", 200), ("close", 204), ("delete", 404)])
def test_a_long_poll_is_answered(
    mounted: Uvicorn, http: httpx.Client, path: str, end: str, status: int
) -> None:
    http.put(path, headers=TEXT)
    with long_poll(mounted, http, path) as client:
        if end == "append":
            http.post(path, content=b"x", headers=TEXT)
        elif end == "close":
            http.post(path, headers={"Stream-Closed": "true"})
        else:
            http.delete(path)
        assert client.response().status == status


def test_a_long_poll_client_that_leaves_is_detached(
    mounted: Uvicorn, http: httpx.Client, path: str
) -> None:
    http.put(path, headers=TEXT)
    with long_poll(mounted, http, path) as client:
        client.close()
        wait_for_readers(http, "long-poll", 0)


def test_an_event_reader_that_leaves_is_detached(
    mounted: Uvicorn, http: httpx.Client, path: str
) -> None:
    http.put(path, headers=TEXT)
    wait_for_readers(http, "sse", 0)
    with follow(mounted, path) as events:
        events.batch()
        wait_for_readers(http, "sse", 1)
    wait_for_readers(http, "sse", 0)


def test_a_reader_that_stalls_and_then_reads_gets_everything(
    mounted: Uvicorn, http: httpx.Client, path: str
) -> None:
    http.put(path, headers=TEXT)
    with follow(mounted, path) as events:
        events.batch()
        for number in range(60):
            http.post(path, content=b"%02d" % number * 30_000, headers=TEXT)
        http.post(path, headers={"Stream-Closed": "true"})
        text = "".join(batch.data or "" for batch in events.rest())
    assert text == "".join(f"{number:02d}" * 30_000 for number in range(60))


# -- bodies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_413(http: httpx.Client, path: str, chunked: bool) -> None:
    http.put(path, headers=TEXT)
    body = b"x" * (BODY_BYTES + 1)
    content = iter([body[:-1], body[-1:]]) if chunked else body
    with httpx.Client(base_url=http.base_url, timeout=DEADLINE_SECS) as client:
        answer = client.post(path, content=content, headers=TEXT)
    assert answer.status_code == 413
    assert answer.json()["limit_bytes"] == BODY_BYTES
    assert http.get(path).content == b""


def test_a_body_that_says_it_is_too_long_is_not_waited_for(mounted: Uvicorn, path: str) -> None:
    with RawConnection(mounted.port) as client:
        client.send(request_bytes("PUT", path, Content_Length=str(BODY_BYTES + 1)))
        assert client.response().status == 413


def test_a_head_does_not_say_that_there_is_nothing_to_get(http: httpx.Client, path: str) -> None:
    http.put(path, content="abc", headers=TEXT)
    http.put(f"{MOUNT}/bucket")
    offset = http.put(f"{MOUNT}/bucket/doc", headers=TEXT).headers["Stream-Next-Offset"]
    http.put(f"{MOUNT}/bucket/doc/snapshot/{offset}", content="snapshot")
    for url in (
        path,
        f"{MOUNT}/bucket/doc/snapshot/{offset}",
        f"{MOUNT}/bucket/doc/bootstrap",
    ):
        answer = http.head(url)
        assert answer.status_code == 200
        assert "Content-Length" not in answer.headers


def test_a_body_of_exactly_the_limit_is_taken(http: httpx.Client, path: str) -> None:
    http.put(path, headers=TEXT)
    answer = http.post(path, content=b"x" * BODY_BYTES, headers=TEXT)
    assert answer.status_code == 204


def cut_off(mounted: Uvicorn, http: httpx.Client, request: bytes) -> None:
    """Send a request whose body ends too soon, and wait until the server has seen the end."""
    with RawConnection(mounted.port) as client:
        client.send(request)
        client.finish_sending()
        client.rest()
    # Whatever a request does is done in the loop's order: this one comes after it.
    assert http.get(f"{MOUNT}/healthz").status_code == 200


def test_an_append_cut_off_in_its_body_does_not_close_the_stream(
    mounted: Uvicorn, http: httpx.Client, path: str
) -> None:
    http.put(path, headers=TEXT)
    fields = {"Content_Type": "text/plain", "Content_Length": "100", "Stream_Closed": "true"}
    cut_off(mounted, http, request_bytes("POST", path, b"half", **fields))
    answer = http.get(path)
    assert (answer.content, answer.headers.get("Stream-Closed")) == (b"", None)


def test_a_create_cut_off_in_its_body_makes_no_stream(
    mounted: Uvicorn, http: httpx.Client, path: str
) -> None:
    fields = {"Content_Type": "text/plain", "Content_Length": "100"}
    cut_off(mounted, http, request_bytes("PUT", path, b"half", **fields))
    assert http.get(path).status_code == 404


# -- shutting down -----------------------------------------------------------------------------


def test_a_shutdown_is_clean_once_live_readers_have_rotated(tmp_path: Path, path: str) -> None:
    rotation = {"DS_SERVER__SSE_RECONNECT_INTERVAL_SECS": "0.3"}
    uvicorn = Uvicorn(tmp_path / "log", **(SETTINGS | rotation))
    with httpx.Client(base_url=uvicorn.url, timeout=DEADLINE_SECS) as http:
        http.put(path, headers=TEXT)
        with follow(uvicorn, path) as events:
            events.batch()
            code = uvicorn.stop()
            assert events.rest() == []
    assert_clean(uvicorn, code)
