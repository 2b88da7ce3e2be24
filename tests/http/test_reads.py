"""Catch-up reads: chunks that join without a seam, and offsets that are taken at their word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

import httpx
import pytest

from headrace.testing.raw_http import RawConnection
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import catch_up
from tests.conftest import stop_cleanly

CHUNK_BYTES = 64
ZERO = "0000000000000000_0000000000000000"
BYTES = "application/octet-stream"
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

SIZES = [(n * 7) % 40 + 1 for n in range(60)]
MESSAGES: dict[str, list[bytes]] = {
    BYTES: [bytes((n * 31 + i) % 256 for i in range(size)) for n, size in enumerate(SIZES)],
    TEXT: [("é€😀\r\n\u2028x" * size)[:size].encode() for size in SIZES],
    JSON: [json.dumps({"n": n, "pad": "é" * size}).encode() for n, size in enumerate(SIZES)],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose answers are small, so that a small stream takes many."""
    env = {"DS_LIMITS__READ_CHUNK_BYTES": str(CHUNK_BYTES)}
    process = ServerProcess(env, cwd=str(tmp_path_factory.mktemp("reads")))
    process.start()
    yield process
    stop_cleanly(process)


def fill(http: httpx.Client, path: str, content_type: str, messages: list[bytes]) -> list[str]:
    """Create the stream and append each message on its own; the offsets, the first one too."""
    headers = {"Content-Type": content_type}
    offsets = [http.put(path, headers=headers).headers["Stream-Next-Offset"]]
    for message in messages:
        answer = http.post(path, content=message, headers=headers)
        assert answer.status_code == 204, answer.text
        offsets.append(answer.headers["Stream-Next-Offset"])
    return offsets


def payload(answers: list[httpx.Response], content_type: str) -> list[bytes]:
    """What the answers carry: JSON messages as texts, everything else in one piece."""
    if content_type != JSON:
        return [b"".join(answer.content for answer in answers)]
    return [json.dumps(message).encode() for answer in answers for message in answer.json()]


def whole(messages: list[bytes], content_type: str) -> list[bytes]:
    return messages if content_type == JSON else [b"".join(messages)]


# -- chunks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("content_type", MESSAGES)
def test_following_the_next_offset_gives_every_message_once(
    http: httpx.Client, stream: str, content_type: str
) -> None:
    messages = MESSAGES[content_type]
    fill(http, stream, content_type, messages)
    answers = catch_up(http, stream)
    assert len(answers) > len(messages) // 10
    assert payload(answers, content_type) == whole(messages, content_type)


@pytest.mark.parametrize("content_type", MESSAGES)
def test_a_read_from_any_returned_offset_gives_exactly_the_rest(
    http: httpx.Client, stream: str, content_type: str
) -> None:
    messages = MESSAGES[content_type][:12]
    for count, offset in enumerate(fill(http, stream, content_type, messages)):
        rest = payload(catch_up(http, stream, offset), content_type)
        assert rest == whole(messages[count:], content_type)


@pytest.mark.parametrize("content_type", MESSAGES)
def test_every_next_offset_is_one_an_append_returned(
    http: httpx.Client, stream: str, content_type: str
) -> None:
    offsets = fill(http, stream, content_type, MESSAGES[content_type])
    returned = [answer.headers["Stream-Next-Offset"] for answer in catch_up(http, stream)]
    assert set(returned) <= set(offsets)
    assert all(before < after for before, after in pairwise([ZERO, *returned]))
    assert returned[-1] == offsets[-1]


def test_an_answer_holds_at_most_one_chunk(http: httpx.Client, stream: str) -> None:
    fill(http, stream, BYTES, MESSAGES[BYTES])
    sizes = [len(answer.content) for answer in catch_up(http, stream)]
    assert max(sizes) <= CHUNK_BYTES
    # Two neighbours that fit into one chunk would have been one answer.
    largest = max(SIZES)
    assert all(size > CHUNK_BYTES - largest for size in sizes[:-1])


@pytest.mark.parametrize("content_type", [BYTES, JSON])
def test_a_message_larger_than_a_chunk_goes_whole_and_alone(
    http: httpx.Client, stream: str, content_type: str
) -> None:
    large = b'"' + b"x" * (10 * CHUNK_BYTES) + b'"'
    fill(http, stream, content_type, [b"1", large, b"2"])
    expected = [b"[1]", b"[" + large + b"]", b"[2]"]
    if content_type == BYTES:
        expected = [b"1", large, b"2"]
    assert [answer.content for answer in catch_up(http, stream)] == expected


def test_a_json_batch_larger_than_a_chunk_is_cut_between_its_messages(
    http: httpx.Client, stream: str
) -> None:
    batch = ["x" * 30] * 5
    fill(http, stream, JSON, [json.dumps(batch).encode()])
    assert [answer.json() for answer in catch_up(http, stream)] == [["x" * 30]] * 5


def test_json_messages_keep_the_text_they_were_sent_with(http: httpx.Client, stream: str) -> None:
    texts = [b'{"b":1.0,"a" : 1e2}', b'"\\u00e9"', b"-0", b'{"k":1,"k":2}']
    fill(http, stream, JSON, texts)
    joined = b",".join(answer.content[1:-1] for answer in catch_up(http, stream))
    assert joined == b",".join(texts)


def test_only_the_last_answer_is_up_to_date_and_closed(http: httpx.Client, stream: str) -> None:
    fill(http, stream, BYTES, MESSAGES[BYTES][:20])
    http.post(stream, headers={"Stream-Closed": "true"})
    *before, last = catch_up(http, stream)
    assert before
    assert not [answer for answer in before if "Stream-Closed" in answer.headers]
    assert last.headers["Stream-Closed"] == "true"
    assert last.content


def test_a_chunk_that_ends_exactly_at_the_tail_is_up_to_date(
    http: httpx.Client, stream: str
) -> None:
    fill(http, stream, BYTES, [b"x" * CHUNK_BYTES])
    answer = http.get(stream)
    assert answer.headers["Stream-Up-To-Date"] == "true"
    assert len(answer.content) == CHUNK_BYTES


# -- where a read begins -----------------------------------------------------------------------


@pytest.mark.parametrize(("content_type", "nothing"), [(BYTES, b""), (JSON, b"[]")])
@pytest.mark.parametrize("offset", ["now", "tail"])
def test_a_read_at_the_tail_is_empty_and_up_to_date(
    http: httpx.Client, stream: str, content_type: str, nothing: bytes, offset: str
) -> None:
    tail = fill(http, stream, content_type, [b"1", b"2"])[-1]
    answer = http.get(stream, params={"offset": tail if offset == "tail" else offset})
    assert (answer.status_code, answer.content) == (200, nothing)
    assert answer.headers["Stream-Next-Offset"] == tail
    assert answer.headers["Stream-Up-To-Date"] == "true"


def test_a_read_without_an_offset_begins_at_the_beginning(http: httpx.Client, stream: str) -> None:
    fill(http, stream, BYTES, [b"abc"])
    assert http.get(stream).content == http.get(stream, params={"offset": "-1"}).content == b"abc"


def test_now_of_a_closed_stream_says_that_it_is_closed(http: httpx.Client, stream: str) -> None:
    http.put(stream, content=b"abc", headers={"Stream-Closed": "true"})
    answer = http.get(stream, params={"offset": "now"})
    assert answer.headers["Stream-Closed"] == "true"
    assert answer.content == b""


UNUSABLE = {
    "past the tail": "0000000000000003_0000000000000006",
    "past the tail by bytes": "0000000000000002_0000000000000007",
    "inside a message": "0000000000000001_0000000000000002",
    "the bytes of one message with the count of another": "0000000000000001_0000000000000006",
    "no messages but bytes": "0000000000000000_0000000000000003",
    "short": "0_0",
    "signed": "-000000000000001_0000000000000000",
    "a word": "yesterday",
    "-2": "-2",
    "in another case": "NOW",
    "with a space": "%20now",
    "empty": "",
    "in other digits": "%D9%A0" * 16 + "_" + "%D9%A0" * 16,
    "too long": "0" * 17 + "_" + "0" * 16,
    "a path": "../../etc/passwd",
    "not UTF-8": "%FF",
    "with a line end": ZERO + "%0A",
}


@pytest.mark.parametrize("offset", UNUSABLE.values(), ids=UNUSABLE.keys())
@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"])
def test_an_offset_the_server_never_returned_is_400(
    server: ServerProcess, http: httpx.Client, stream: str, offset: str, live: str
) -> None:
    fill(http, stream, BYTES, [b"abc", b"def"])
    with RawConnection(server.port) as connection:
        answer = connection.request("GET", f"{stream}?offset={offset}{live}")
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "query",
    [
        "offset=-1&offset=-1",
        "offset=-1&offset=now",
        "offset=-1&live=sse&live=sse",
        "offset=-1&live=long-poll&cursor=1&cursor=2",
        "off%73et=-1&offset=now",
    ],
)
def test_a_parameter_given_twice_is_400(
    server: ServerProcess, http: httpx.Client, stream: str, query: str
) -> None:
    http.put(stream)
    with RawConnection(server.port) as connection:
        answer = connection.request("GET", f"{stream}?{query}")
    assert answer.status == 400
    assert "more than once" in answer.json()["detail"]


@pytest.mark.parametrize(
    "query", ["live=long-poll", "live=sse", "offset=-1&live=", "offset=-1&live=LONG-POLL"]
)
def test_a_live_read_needs_an_offset_and_a_mode_we_know(
    http: httpx.Client, stream: str, query: str
) -> None:
    http.put(stream)
    assert http.get(f"{stream}?{query}").status_code == 400


@pytest.mark.parametrize("query", ["?", "?x=1&x=2", "?offset=-1&unknown", "?cursor=junk"])
def test_parameters_we_do_not_know_change_nothing(
    http: httpx.Client, stream: str, query: str
) -> None:
    http.put(stream, content=b"abc")
    assert http.get(stream + query).content == b"abc"
