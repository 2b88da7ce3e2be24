"""The tails of many streams in one request."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.server_queries import live_readers
from headrace.testing.waiting import eventually
from tests.conftest import Serve
from tests.http.helpers import JSON, TEXT, client_of, problem_of

TAILS = "/v1/stream/__ds/tails"
ZERO = "0000000000000000_0000000000000000"


def name_of(path: str) -> str:
    return path.removeprefix("/v1/stream/")


def tails(client: httpx.Client, *streams: Any, live: str | None = None) -> list[dict[str, Any]]:
    params = {"live": live} if live else None
    answer = client.post(TAILS, json={"streams": streams}, params=params)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["streams"]
    return found


def test_each_stream_says_where_it_stands(http: httpx.Client, stream: str) -> None:
    other = f"{stream}-é"
    http.put(stream, headers=JSON)
    http.put(other, headers=TEXT)
    tail = http.post(stream, content=b"[1,2,3]", headers=JSON).headers["Stream-Next-Offset"]
    http.post(other, headers={"Stream-Closed": "true"})
    first, second = tails(http, {"stream": name_of(stream), "from": "-1"}, name_of(other))
    assert first == {
        "stream": name_of(stream),
        "next_offset": tail,
        "earliest_offset": ZERO,
        "content_type": "application/json",
        "created_at_ms": first["created_at_ms"],
        "closed": False,
        "messages": 3,
        "bytes": 6,
    }
    assert (second["stream"], second["closed"], second["messages"]) == (name_of(other), True, 0)


def test_a_stream_is_told_from_an_earlier_one_of_the_same_name(
    http: httpx.Client, stream: str
) -> None:
    def created() -> list[int]:
        """As each answer has it: of the tail, of a tail that refuses, of a framed read."""
        http.put(stream, headers=TEXT)
        past = {"stream": name_of(stream), "from": "9999999999999999_9999999999999999"}
        framed = http.get(stream, params={"format": "framed"})
        found = [entry["created_at_ms"] for entry in tails(http, name_of(stream), past)]
        return [*found, int(framed.headers["Stream-Created-At-Ms"])]

    first, again = created(), created()
    assert first == again == [first[0]] * 3
    http.delete(stream)
    assert len({*first, *created()}) == 2


def test_what_cannot_answer_does_not_keep_the_others_from_answering(
    http: httpx.Client, stream: str
) -> None:
    http.put(stream, headers=TEXT)
    missing, past, fine = tails(
        http,
        "no/such/stream",
        {"stream": name_of(stream), "from": "9999999999999999_9999999999999999"},
        name_of(stream),
    )
    assert (missing["problem"], past["problem"]) == ("stream-not-found", "invalid-offset")
    assert missing["detail"].endswith(".")
    assert "problem" not in fine


SEEKS = [
    ({"max_messages": 1}, 1),
    ({"max_messages": 4}, 4),
    ({"max_messages": 99}, 6),
    ({"max_bytes": 1}, 1),
    ({"max_bytes": 30}, 3),
    ({"max_bytes": 39, "max_messages": 5}, 3),
    ({"max_bytes": 1000, "max_messages": 5}, 5),
]


@pytest.mark.parametrize("mode", ["memory", "file-durable", "acid"])
def test_a_seek_gives_the_offset_a_bounded_batch_ends_at(
    serve: Serve, stream: str, mode: str
) -> None:
    settings = {"DS_STORAGE__MODE": mode, "DS_STORAGE__DATA_DIR": "data"}
    offsets = [ZERO]
    server = serve(**settings)
    with client_of(server) as client:
        client.put(stream, headers=TEXT)
        for _ in range(6):
            answer = client.post(stream, content=b"0123456789", headers=TEXT)
            offsets.append(answer.headers["Stream-Next-Offset"])
        assert_seeks(client, stream, offsets)
    if mode != "memory":
        # Once more where nothing is in memory and only reading tells.
        server.stop()
        with client_of(serve(**settings)) as client:
            assert_seeks(client, stream, offsets)


def assert_seeks(client: httpx.Client, stream: str, offsets: list[str]) -> None:
    for bounds, count in SEEKS:
        for start in (0, 2):
            query = {"stream": name_of(stream), "from": offsets[start], **bounds}
            [found] = tails(client, query)
            assert found["until_offset"] == offsets[min(6, start + count)]


def test_a_long_poll_answers_when_one_of_many_streams_moves(serve: Serve) -> None:
    server = serve(DS_SERVER__LONG_POLL_TIMEOUT_SECS="600")
    with client_of(server) as client, ThreadPoolExecutor(1) as pool:
        for number in range(20):
            client.put(f"/v1/stream/s/{number}", headers=TEXT)
        queries = [{"stream": f"s/{number}", "from": "-1"} for number in range(20)]
        waiting = pool.submit(tails, client, *queries, live="long-poll")
        eventually(lambda: live_readers(client, "long-poll") == 1, "a long-poll")
        assert not waiting.done()
        client.post("/v1/stream/s/7", content=b"x", headers=TEXT)
        moved = [found["stream"] for found in waiting.result() if found["messages"]]
        assert moved == ["s/7"]
        assert live_readers(client, "long-poll") == 0


def test_a_long_poll_ends_with_a_deletion_and_with_its_time(serve: Serve, stream: str) -> None:
    server = serve(DS_SERVER__LONG_POLL_TIMEOUT_SECS="0.2")
    with client_of(server) as client:
        client.put(stream, headers=TEXT)
        query = {"stream": name_of(stream), "from": "-1"}
        [idle] = tails(client, query, live="long-poll")
        assert idle["messages"] == 0
        client.delete(stream)
        [gone] = tails(client, query, live="long-poll")
        assert gone["problem"] == "stream-not-found"


def test_a_stream_made_again_during_a_long_poll_is_another_stream(http: httpx.Client) -> None:
    http.put("/v1/stream/again", headers=TEXT, content=b"before")
    [before] = tails(http, {"stream": "again"})
    query = {"stream": "again", "from": before["next_offset"]}
    # At once, so that the poll is not answered between the requests.
    again = [
        request_bytes("DELETE", "/v1/stream/again"),
        request_bytes("PUT", "/v1/stream/again", Content_Type="text/plain"),
        request_bytes("POST", "/v1/stream/again", b"after", Content_Type="text/plain"),
    ]
    with RawConnection(http.base_url.port or 0) as other, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(tails, http, query, live="long-poll")
        eventually(lambda: live_readers(http, "long-poll") == 1, "a long-poll")
        other.send(b"".join(again))
        assert [other.response().status for _ in again] == [204, 201, 204]
        [found] = waiting.result()
    assert found["problem"] == "stream-not-found"


def test_many_streams_fit_into_one_request(http: httpx.Client) -> None:
    found = tails(http, *(f"none/{number}" for number in range(10_000)))
    assert len(found) == 10_000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"streams": {}}',
        b'{"streams": [1]}',
        b'{"streams": [{}]}',
        b'{"streams": [""]}',
        b'{"streams": ["a//b"]}',
        b'{"streams": [{"stream": "a", "form": "-1"}]}',
        b'{"streams": [{"stream": "a", "from": 3}]}',
        b'{"streams": [{"stream": "a", "from": "x"}]}',
        b'{"streams": [{"stream": "a", "from": "-1", "max_messages": 0}]}',
        b'{"streams": [{"stream": "a", "from": "-1", "max_bytes": true}]}',
        b'{"streams": [' + b",".join([b'"a"'] * 10_001) + b"]}",
    ],
)
def test_a_request_that_makes_no_sense_is_refused(http: httpx.Client, body: bytes) -> None:
    answer = http.post(TAILS, content=body)
    assert answer.status_code == 400
    assert problem_of(answer) in ("invalid-request", "invalid-name", "invalid-offset")


def test_a_long_poll_needs_offsets_and_other_live_modes_are_refused(http: httpx.Client) -> None:
    for params, streams in (({"live": "long-poll"}, ["a"]), ({"live": "sse"}, [])):
        answer = http.post(TAILS, json={"streams": streams}, params=params)
        assert (answer.status_code, problem_of(answer)) == (400, "invalid-request")


def test_only_post_asks_for_tails(http: httpx.Client) -> None:
    assert http.get(TAILS).status_code == 405
