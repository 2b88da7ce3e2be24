"""What caches are told: which answers they may keep, for whom, how long, and when to ask again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.sse_reader import open_events
from tests.conftest import stop_cleanly

PUBLIC = "public, max-age=60, stale-while-revalidate=300"
PRIVATE = "private, max-age=60, stale-while-revalidate=300"
BYTES = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose answers hold 4 bytes: the first of two messages is below the tail."""
    env = {"DS_LIMITS__READ_CHUNK_BYTES": "4", "DS_SERVER__LONG_POLL_TIMEOUT_SECS": "0.2"}
    process = ServerProcess(env, cwd=str(tmp_path_factory.mktemp("caching")))
    process.start()
    yield process
    stop_cleanly(process)


def two_chunks(http: httpx.Client, path: str, **headers: str) -> str:
    """A stream of two answers; the offset between them."""
    http.put(path, content=b"aaaa", headers=BYTES | headers).raise_for_status()
    http.post(path, content=b"bbbb", headers=BYTES).raise_for_status()
    middle: str = http.get(path).headers["Stream-Next-Offset"]
    return middle


# -- Cache-Control -----------------------------------------------------------------------------


def test_a_range_below_the_tail_may_be_kept_by_anyone(http: httpx.Client, stream: str) -> None:
    two_chunks(http, stream)
    assert http.get(stream).headers["Cache-Control"] == PUBLIC


@pytest.mark.parametrize("name", ["Authorization", "X-JWT-Sub"])
@pytest.mark.parametrize("value", ["someone", ""])
def test_a_range_read_under_a_name_may_be_kept_by_its_reader_only(
    http: httpx.Client, stream: str, name: str, value: str
) -> None:
    two_chunks(http, stream)
    assert http.get(stream, headers={name: value}).headers["Cache-Control"] == PRIVATE


@pytest.mark.parametrize("private", [False, True])
def test_a_long_poll_answer_below_the_tail_may_be_kept(
    http: httpx.Client, stream: str, private: bool
) -> None:
    two_chunks(http, stream)
    headers = {"Authorization": "x"} if private else {}
    answer = http.get(stream, params={"offset": "-1", "live": "long-poll"}, headers=headers)
    assert answer.headers["Cache-Control"] == (PRIVATE if private else PUBLIC)


@pytest.mark.parametrize("closed", ["true", "false"])
@pytest.mark.parametrize("offset", ["middle", "tail", "now"])
def test_an_answer_that_reaches_the_tail_is_not_stored(
    http: httpx.Client, stream: str, closed: str, offset: str
) -> None:
    middle = two_chunks(http, stream)
    if closed == "true":
        http.post(stream, headers={"Stream-Closed": "true"})
    tail = http.head(stream).headers["Stream-Next-Offset"]
    at = {"middle": middle, "tail": tail, "now": "now"}[offset]
    assert http.get(stream, params={"offset": at}).headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("method", "query", "status"),
    [
        ("HEAD", "", 200),
        ("GET", "?offset=bad", 400),
        ("GET", "-absent", 404),
        ("PATCH", "", 405),
        ("PUT", "", 409),
        ("GET", "?offset=now&live=long-poll", 204),
        ("DELETE", "", 204),
    ],
)
def test_an_answer_that_is_no_range_is_not_stored(
    http: httpx.Client, stream: str, method: str, query: str, status: int
) -> None:
    http.put(stream, headers={"Content-Type": "text/plain"})
    answer = http.request(method, stream + query)
    assert (answer.status_code, answer.headers["Cache-Control"]) == (status, "no-store")


def test_an_event_stream_is_not_cached(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    http.put(stream)
    with open_events(server.port, f"{stream}?offset=-1&live=sse") as events:
        assert events.head.headers["cache-control"] == "no-cache"


def test_the_age_is_at_most_the_ttl(http: httpx.Client, stream: str) -> None:
    two_chunks(http, stream, **{"Stream-TTL": "30"})
    found = re.fullmatch(r"public, max-age=(\d+)", http.get(stream).headers["Cache-Control"])
    assert found
    assert 0 < int(found[1]) <= 30


@pytest.mark.parametrize("ttl", ["90", "100000"])
def test_a_ttl_of_a_minute_or_more_does_not_shorten_the_age(
    http: httpx.Client, stream: str, ttl: str
) -> None:
    two_chunks(http, stream, **{"Stream-TTL": ttl})
    assert http.get(stream).headers["Cache-Control"].startswith("public, max-age=60")


def test_the_age_is_at_most_what_is_left_until_the_expiry(http: httpx.Client, stream: str) -> None:
    expiry = (datetime.now(UTC) + timedelta(seconds=40)).strftime("%Y-%m-%dT%H:%M:%SZ")
    two_chunks(http, stream, **{"Stream-Expires-At": expiry})
    found = re.fullmatch(r"public, max-age=(\d+)", http.get(stream).headers["Cache-Control"])
    assert found
    assert int(found[1]) <= 40


# -- ETag --------------------------------------------------------------------------------------


def etag(http: httpx.Client, path: str, offset: str = "-1") -> str:
    value: str = http.get(path, params={"offset": offset}).headers["ETag"]
    return value


def test_a_range_below_the_tail_keeps_its_etag(http: httpx.Client, stream: str) -> None:
    two_chunks(http, stream)
    before = etag(http, stream)
    http.post(stream, content=b"cccc", headers=BYTES | {"Stream-Closed": "true"})
    assert etag(http, stream) == before


@pytest.mark.parametrize("change", [b"more", b""], ids=["append", "close"])
def test_a_range_at_the_tail_gets_another_etag(
    http: httpx.Client, stream: str, change: bytes
) -> None:
    http.put(stream, content=b"x", headers=BYTES)
    tail = http.head(stream).headers["Stream-Next-Offset"]
    before = etag(http, stream, tail)
    headers = BYTES if change else {"Stream-Closed": "true"}
    http.post(stream, content=change, headers=headers).raise_for_status()
    assert etag(http, stream, tail) != before


def test_different_ranges_have_different_etags(http: httpx.Client, stream: str) -> None:
    middle = two_chunks(http, stream)
    tail = http.head(stream).headers["Stream-Next-Offset"]
    assert len({etag(http, stream, at) for at in ("-1", middle, tail)}) == 3


def test_a_stream_created_again_has_other_etags(http: httpx.Client, stream: str) -> None:
    two_chunks(http, stream)
    before = etag(http, stream)
    http.delete(stream)
    two_chunks(http, stream)
    assert etag(http, stream) != before


def test_now_has_no_etag(http: httpx.Client, stream: str) -> None:
    two_chunks(http, stream)
    assert "ETag" not in http.get(stream, params={"offset": "now"}).headers


# -- If-None-Match -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "held",
    ["{etag}", "W/{etag}", '"other", {etag}', '{etag},"other"', '"a",\t W/{etag} ,"b"', "*"],
)
def test_a_client_that_holds_the_range_gets_304(http: httpx.Client, stream: str, held: str) -> None:
    middle = two_chunks(http, stream)
    full = http.get(stream)
    answer = http.get(stream, headers={"If-None-Match": held.format(etag=full.headers["ETag"])})
    assert (answer.status_code, answer.content) == (304, b"")
    assert answer.headers["Stream-Next-Offset"] == middle
    for name in ("ETag", "Cache-Control", "Stream-Next-Offset"):
        assert answer.headers[name] == full.headers[name]


@pytest.mark.parametrize("held", ['"other"', '"a", "b"', "", "W/", "{bare}", '"{bare}x"'])
def test_a_client_that_holds_something_else_gets_the_range(
    http: httpx.Client, stream: str, held: str
) -> None:
    two_chunks(http, stream)
    bare = etag(http, stream).strip('"')
    answer = http.get(stream, headers={"If-None-Match": held.format(bare=bare)})
    assert (answer.status_code, answer.content) == (200, b"aaaa")


def test_several_if_none_match_lines_are_one_list(http: httpx.Client, stream: str) -> None:
    two_chunks(http, stream)
    lines = [("If-None-Match", '"other"'), ("If-None-Match", etag(http, stream))]
    assert http.get(stream, headers=lines).status_code == 304


def test_a_304_at_the_tail_says_that_it_is_the_tail(http: httpx.Client, stream: str) -> None:
    http.put(stream, content=b"x", headers=BYTES | {"Stream-Closed": "true"})
    answer = http.get(stream, headers={"If-None-Match": etag(http, stream)})
    assert answer.status_code == 304
    assert answer.headers["Stream-Up-To-Date"] == "true"
    assert answer.headers["Stream-Closed"] == "true"


def test_a_client_that_holds_the_open_tail_learns_of_the_close(
    http: httpx.Client, stream: str
) -> None:
    http.put(stream, content=b"x", headers=BYTES)
    held = etag(http, stream)
    http.post(stream, headers={"Stream-Closed": "true"})
    answer = http.get(stream, headers={"If-None-Match": held})
    assert (answer.status_code, answer.content) == (200, b"x")
    assert answer.headers["Stream-Closed"] == "true"


def test_a_held_range_of_a_deleted_stream_is_404(http: httpx.Client, stream: str) -> None:
    two_chunks(http, stream)
    held = etag(http, stream)
    http.delete(stream)
    assert http.get(stream, headers={"If-None-Match": held}).status_code == 404
