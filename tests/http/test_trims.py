"""A stream gives up its beginning: by an offset, or by how many messages are to stay."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.sse_reader import open_events
from tests.conftest import Serve
from tests.http.helpers import JSON, TEXT, client_of, problem_of

TRIM = "/v1/stream/__ds/trim"


def name_of(path: str) -> str:
    return path.removeprefix("/v1/stream/")


def fill(http: httpx.Client, path: str, count: int) -> list[str]:
    """A text stream of `count` messages of two bytes; the offset before each, and the tail."""
    offsets = [http.put(path, headers=TEXT).headers["stream-next-offset"]]
    for number in range(count):
        answer = http.post(path, headers=TEXT, content=b"%02d" % number)
        offsets.append(answer.headers["stream-next-offset"])
    return offsets


def trim(http: httpx.Client, path: str, **how: Any) -> str:
    answer = http.post(TRIM, json={"stream": name_of(path), **how})
    assert answer.status_code == 200, answer.text
    assert answer.json()["stream"] == name_of(path)
    earliest: str = answer.json()["earliest_offset"]
    return earliest


def assert_begins_at(http: httpx.Client, path: str, offset: str, rest: bytes) -> None:
    assert http.get(path, params={"offset": offset}).content == rest
    gone = http.get(path, params={"offset": "-1"})
    assert (gone.status_code, gone.headers["stream-next-offset"]) == (410, offset)
    assert gone.json()["earliest_offset"] == offset


def test_what_is_before_an_offset_is_gone(http: httpx.Client, stream: str) -> None:
    offsets = fill(http, stream, 5)
    assert trim(http, stream, before=offsets[2]) == offsets[2]
    assert_begins_at(http, stream, offsets[2], b"020304")
    assert trim(http, stream, before=offsets[1]) == offsets[2], "what is gone stays so"
    assert trim(http, stream, before="now") == offsets[5]
    assert_begins_at(http, stream, offsets[5], b"")
    http.post(stream, headers=TEXT, content=b"05")
    assert http.get(stream, params={"offset": offsets[5]}).content == b"05"


def test_the_last_messages_are_kept(http: httpx.Client, stream: str) -> None:
    offsets = fill(http, stream, 5)
    assert trim(http, stream, keep_messages=7) == offsets[0]
    assert trim(http, stream, keep_messages=2) == offsets[3]
    assert_begins_at(http, stream, offsets[3], b"0304")
    assert trim(http, stream, keep_messages=3) == offsets[3]
    http.post(stream, headers=TEXT, content=b"05")
    assert trim(http, stream, keep_messages=2) == offsets[4]


@pytest.mark.parametrize("mode", ["acid", "file-durable", "file-fast"])
def test_a_trim_outlives_the_server_and_a_fork_what_its_source_gave_up(
    mode: str, serve: Serve, stream: str
) -> None:
    settings = {"DS_STORAGE__MODE": mode}
    fork, later, tail = f"{stream}-fork", f"{stream}-later", f"{stream}-tail"
    server = serve(**settings)
    with client_of(server) as http:
        offsets = fill(http, stream, 6)
        source = {"Stream-Forked-From": stream}
        http.put(fork, headers=TEXT | source | {"Stream-Fork-Offset": offsets[3]})
        trim(http, stream, before=offsets[2])
        http.put(later, headers=TEXT | source | {"Stream-Fork-Offset": offsets[4]})
        trim(http, stream, before="now")
        http.put(tail, headers=TEXT | source)
        refused = http.put(f"{stream}-x", headers=TEXT | source | {"Stream-Fork-Offset": "-1"})
        assert refused.status_code in (400, 410)

    def check(http: httpx.Client) -> None:
        assert http.get(fork).content == b"000102"
        assert_begins_at(http, stream, offsets[6], b"")
        assert_begins_at(http, later, offsets[2], b"0203")
        assert_begins_at(http, tail, offsets[6], b"")

    with client_of(server) as http:
        check(http)
    server.kill()
    with client_of(serve(**settings)) as http:
        check(http)
        assert http.delete(fork).status_code == http.delete(later).status_code == 204
        assert_begins_at(http, stream, offsets[6], b"")
        assert http.post(tail, headers=TEXT, content=b"on").status_code == 204
        assert http.get(tail, params={"offset": offsets[6]}).content == b"on"


def test_room_that_a_trim_gave_back_can_be_written_again(stream: str) -> None:
    with ServerProcess({"DS_LIMITS__MAX_STREAM_BYTES": "100"}) as server, client_of(server) as http:
        http.put(stream, headers=TEXT)
        for _ in range(5):
            assert http.post(stream, headers=TEXT, content=b"x" * 80).status_code == 204
            assert http.post(stream, headers=TEXT, content=b"x" * 80).status_code == 413
            trim(http, stream, before="now")


def test_a_live_reader_at_the_tail_goes_on(server: ServerProcess, http: httpx.Client) -> None:
    path = "/v1/stream/trimmed-live"
    fill(http, path, 3)
    with open_events(server.port, f"{path}?offset=now&live=sse") as events:
        events.batch()
        trim(http, path, before="now")
        http.post(path, headers=TEXT, content=b"next")
        assert events.batch().data == "next"


def test_streams_of_buckets_are_trimmed_until_they_have_a_snapshot(http: httpx.Client) -> None:
    http.put("/trims")
    offsets = fill(http, "/trims/s", 4)
    assert trim(http, "/trims/s", before=offsets[1]) == offsets[1]
    published = http.put(f"/trims/s/snapshot/{offsets[2]}", content=b"00..01")
    assert published.status_code in (200, 201, 204)
    refused = http.post(TRIM, json={"stream": "/trims/s", "before": offsets[3]})
    assert problem_of(refused).endswith("snapshot-in-use")
    assert trim(http, "/trims/s", before=offsets[2]) == offsets[2]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"before": "now"}, 400, "The body must be"),
        ({"stream": "s"}, 400, "The body must be"),
        ({"stream": "s", "before": "now", "keep_messages": 1}, 400, "one of"),
        ({"stream": "s", "before": 7}, 400, "before must be"),
        ({"stream": "s", "before": "-1"}, 400, "now, or"),
        ({"stream": "s", "keep_messages": 0}, 400, "keep_messages must be a whole number from 1"),
        ({"stream": "s", "before": "now", "also": 1}, 400, "Unknown field 'also'"),
        ({"stream": "a//b", "before": "now"}, 400, ""),
        ({"stream": "is-not-there", "before": "now"}, 404, "There is no stream"),
        ({"stream": "__registry__", "before": "now"}, 405, ""),
        ([], 400, "The body must be"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    http: httpx.Client, body: Any, status: int, words: str
) -> None:
    http.put("/v1/stream/s", headers=JSON)
    answer = http.post(TRIM, json=body)
    assert answer.status_code == status
    assert words in answer.json()["detail"]


def test_an_offset_must_be_one_of_the_stream(http: httpx.Client, stream: str) -> None:
    offsets = fill(http, stream, 2)
    messages, _, size = offsets[2].partition("_")
    for offset, status in (
        (f"{messages}_{int(size) + 1:016}", 409),
        (f"{1:016}_{1:016}", 400),
        (f"{1:016}_{3:016}", 400),
        (f"{0:016}_{2:016}", 400),
    ):
        answer = http.post(TRIM, json={"stream": name_of(stream), "before": offset})
        assert answer.status_code == status, (offset, answer.text)
    assert http.get(stream).content == b"0001"
    assert http.get(TRIM).status_code == 405
