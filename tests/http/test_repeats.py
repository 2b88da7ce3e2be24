"""Requests that are like the one before are read as if each were the first on its connection."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.clock import SystemClock
from headrace.http.connections.reader import BodyBudget, ReaderLimits, RequestReader
from headrace.http.connections.response_head import ResponseHead
from headrace.http.cors import CorsPolicy
from headrace.http.exchange import Client, Request
from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.server_process import ServerProcess

BODY_BYTES_MAX = 300
URL_BYTES_MAX = 100
LIMITS = ReaderLimits(body_bytes_max=BODY_BYTES_MAX, url_bytes_max=URL_BYTES_MAX)
RESPONSE_HEAD = ResponseHead(SystemClock(), CorsPolicy(("*",)))
TEXT = "text/plain"


def new_reader() -> RequestReader:
    return RequestReader(LIMITS, BodyBudget(1 << 20), RESPONSE_HEAD, Client("127.0.0.1"))


def feed(reader: RequestReader, data: bytes) -> None:
    """As a connection does it: what comes in a large read is parsed in pieces."""
    reader.feed(data)
    while reader.unread:
        reader.read_on()


def facts(request: Request) -> tuple[Any, ...]:
    keys = (request.method, request.target, request.headers, request.body)
    return (*keys, request.keep_alive, request.http_11)


def read_apart(sent: list[bytes]) -> tuple[list[Any], str | None]:
    """Each on a reader of its own; nothing after a refusal."""
    found: list[Any] = []
    for data in sent:
        reader = new_reader()
        feed(reader, data)
        found += map(facts, reader.ready)
        if reader.refusal is not None:
            return found, type(reader.refusal).__name__
    return found, None


def read_together(sent: list[bytes]) -> tuple[list[Any], str | None]:
    reader = new_reader()
    for data in sent:
        feed(reader, data)
    refusal = None if reader.refusal is None else type(reader.refusal).__name__
    return list(map(facts, reader.ready)), refusal


def append(
    seq: str = "0",
    length: str | None = None,
    body: bytes = b"x",
    before: str = "",
    after: str = "",
    target: str = "/v1/stream/a",
) -> bytes:
    size = str(len(body)) if length is None else length
    lines = [
        f"POST {target} HTTP/1.1", "Host: localhost", before, "Content-Type: text/plain",
        f"Producer-Seq: {seq}", f"Content-Length: {size}", after,
    ]  # fmt: skip
    head = "".join(f"{line}\r\n" for line in lines if line)
    return head.encode("latin-1") + b"\r\n" + body


SEQS = st.integers(0, 10**17).map(str) | st.sampled_from(
    ["", "00", "1 ", " 1", "1,2", "-1", "\u00b2", "9" * 40]
)
BODIES = st.binary(max_size=BODY_BYTES_MAX + 20) | st.sampled_from(
    [b"\r\n\r\n", b"5\r\nContent-Length: 1\r\n\r\nx", append()[:200]]
)
FIELDS = st.sampled_from([
    "", "producer-seq: 7", "content-length: 1", "X-Producer-Seq: 1", "Expect: 100-continue",
    "Connection: close", "Connection: Upgrade\r\nUpgrade: h2c",
    "X: \tProducer-Seq: 3", "CONTENT-LENGTH: 12", "X-Content-Length: 1",
])  # fmt: skip
TARGETS = st.sampled_from([
    "/v1/stream/a", "/v1/stream/b", "/b", "/", "", "*", "a", "//", "/a b", "/a  b", "/a?b", "/a#b",
    " /a", "  /a", "/b /a", "/a ",
    "/%2f%", "/\u00e9", "/\x00", "/\t", "/\x7f", '/"', "/<>", "http://h/a", "/a HTTP/1.1\r\nX: y",
    "/" + "a" * (URL_BYTES_MAX - 1), "/" + "a" * URL_BYTES_MAX, "/" + "a" * 3000,
])  # fmt: skip
WHOLE = st.builds(append, SEQS, st.none(), BODIES, FIELDS, FIELDS, TARGETS)
ALIKE = st.builds(append, st.just("1"), target=TARGETS)


@given(st.lists(WHOLE, min_size=2, max_size=6) | st.lists(ALIKE, min_size=2, max_size=6))
@example([append("1", body=b"a"), append("2", body=b"bc"), append("10", body=b"d" * 200)])
@example([append("1"), append("2", body=b"y" * BODY_BYTES_MAX), append("3", body=b"z" * 301)])
@example([append("1"), append("2", body=b"")])
@example([append(target=" /a"), append(target="/b /a")])
@example([append("1", after="producer-seq: 7"), append("2", after="producer-seq: 7")])
def test_a_request_is_read_alike_first_and_again(sent: list[bytes]) -> None:
    apart, refusal = read_apart(sent)
    closing = next((n for n, found in enumerate(apart) if not found[4]), len(apart))
    together, refusal_together = read_together(sent)
    assert together[: closing + 1] == apart[: closing + 1]
    if closing == len(apart):
        assert refusal_together == refusal


@given(st.lists(WHOLE, min_size=1, max_size=5), st.lists(st.integers(0, 3000), max_size=6))
@example([append(target="/" + "a" * 3000)] * 2, [1000, 3000])
def test_where_the_packets_end_changes_nothing(sent: list[bytes], cuts: list[int]) -> None:
    stream = b"".join([append("1"), append("2"), *sent])
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[a:b] for a, b in pairwise(edges)]
    assert read_together(pieces) == read_together([stream])


@pytest.mark.parametrize("count", [2, 100])
def test_requests_that_differ_in_their_stream_are_not_parsed_again(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = new_reader()
    reader.feed(append("1"))
    monkeypatch.setattr(RequestReader, "_parse", lambda reader, data: pytest.fail("parsed"))
    targets = [f"/v1/stream/{number % count}" for number in range(3 * count)]
    for target in targets:
        reader.feed(append("2", target=target))
    assert [request.target.decode() for request in reader.ready] == ["/v1/stream/a", *targets]
    assert len({id(request.parsed_head) for request in reader.ready}) == 1


def test_a_length_that_does_not_match_waits_for_the_rest() -> None:
    reader = new_reader()
    for data in (append("1"), append("2", length="3", body=b"a")):
        reader.feed(data)
    assert len(reader.ready) == 1
    assert reader.is_receiving
    reader.feed(b"bc")
    assert [request.body for request in reader.ready] == [b"x", b"abc"]


def test_a_client_that_repeats_itself_gets_what_each_request_deserves(
    server: ServerProcess, stream: str
) -> None:
    def write(seq: int, body: bytes = b"x") -> int:
        headers = {"Producer_Id": "w", "Producer_Epoch": "0", "Producer_Seq": str(seq)}
        return connection.request("POST", stream, body, Content_Type=TEXT, **headers).status

    with RawConnection(server.port) as connection:
        connection.request("PUT", stream, Content_Type=TEXT)
        assert [write(seq) for seq in (0, 1, 2)] == [200, 200, 200]
        assert write(2) == 204  # a repeat
        assert write(9) == 409  # a gap
        assert write(3, b"y" * 5000) == 200
        assert write(4, b"") == 400
        assert write(4) == 200
        assert connection.request("GET", stream).body == b"xxx" + b"y" * 5000 + b"x"


@pytest.mark.parametrize("path", ["/v1/stream/again", "/again-bucket/s"])
def test_a_stream_that_goes_and_comes_back_under_a_writer(server: ServerProcess, path: str) -> None:
    def write() -> int:
        return connection.request("POST", path, b"x", Content_Type=TEXT).status

    with RawConnection(server.port) as connection:
        connection.request("PUT", "/again-bucket")
        connection.request("PUT", path, Content_Type=TEXT)
        assert [write(), write()] == [204, 204]
        connection.request("DELETE", path)
        assert [write(), write()] == [404, 404]
        connection.request("PUT", path, Content_Type="application/json")
        assert write() == 409
        connection.request("DELETE", path)
        connection.request("PUT", path, Content_Type=TEXT)
        assert [write(), write()] == [204, 204]
        assert connection.request("GET", path).body == b"xx"
        connection.request("POST", path, Stream_Closed="true")
        assert write() == 409


def test_a_writer_goes_round_streams_and_each_gets_its_own(server: ServerProcess) -> None:
    streams = [f"/v1/stream/round/{number}" for number in range(40)]
    with RawConnection(server.port) as connection:
        for number, path in enumerate(streams):
            kind = "application/json" if number == 7 else TEXT
            connection.request("PUT", path, Content_Type=kind)
        connection.request("POST", streams[3], Stream_Closed="true")
        for turn in (b"1", b"2", b"3"):
            for number, path in enumerate([*streams, "/v1/stream/round/none"]):
                answer = connection.request("POST", path, turn, Content_Type=TEXT)
                assert answer.status == {3: 409, 7: 409, 40: 404}.get(number, 204)
        assert connection.request("GET", streams[0]).body == b"123"
        assert connection.request("GET", streams[39]).body == b"123"
        assert connection.request("GET", streams[7]).body == b"[]"


def test_a_bucket_that_goes_away_is_said_to_be_gone(server: ServerProcess) -> None:
    with RawConnection(server.port) as connection:
        connection.request("PUT", "/passing-bucket")
        connection.request("PUT", "/passing-bucket/s", Content_Type=TEXT)
        for _ in range(2):
            connection.request("POST", "/passing-bucket/s", b"x", Content_Type=TEXT)
        connection.request("DELETE", "/passing-bucket/s")
        connection.request("DELETE", "/passing-bucket")
        answer = connection.request("POST", "/passing-bucket/s", b"x", Content_Type=TEXT)
        assert answer.status == 404
        assert b"bucket-not-found" in answer.body


def test_a_repeated_request_behind_a_partial_one_stays_its_body(
    server: ServerProcess, stream: str
) -> None:
    inner = request_bytes("POST", stream, b"x", Content_Type=TEXT)
    with RawConnection(server.port) as connection:
        connection.request("PUT", stream, Content_Type=TEXT)
        for _ in range(2):
            connection.send(inner)
            assert connection.response().status == 204
        outer = request_bytes("POST", stream, inner, Content_Type=TEXT)
        connection.send(outer[: -len(inner)])
        connection.send(inner)
        assert connection.response().status == 204
        assert connection.request("GET", stream).body == b"xx" + inner
