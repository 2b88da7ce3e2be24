"""What a request asks, as far as the request alone tells."""

from __future__ import annotations

from functools import partial

import pytest

from headrace.errors import InvalidName, InvalidOffset, InvalidRequest
from headrace.limits import PRODUCER_ID_BYTES_MAX, STREAM_SEQ_BYTES_MAX
from headrace.protocol.expiry import FOREVER, Lifetime
from headrace.protocol.headers import Headers
from headrace.protocol.names import decode_source
from headrace.protocol.offsets import BEGINNING, NOW, Position
from headrace.protocol.producers import ProducerHeaders
from headrace.protocol.requests import (
    Append,
    Create,
    ForkRequest,
    Live,
    Read,
    parse_append,
    parse_create,
    parse_read,
)

TEXT: Headers = {b"content-type": b"text/plain"}
CLOSE: Headers = {b"stream-closed": b"true"}
TOKEN = "0000000000000002_0000000000000009"
POSITION = Position(2, 9)
source_of = partial(decode_source, stream_roots=["/v1/stream"])


def producer(id: bytes = b"w", epoch: bytes = b"0", seq: bytes = b"0") -> Headers:
    return {b"producer-id": id, b"producer-epoch": epoch, b"producer-seq": seq}


def without(headers: Headers, name: bytes) -> Headers:
    return {key: value for key, value in headers.items() if key != name}


@pytest.mark.parametrize(
    ("headers", "body", "command"),
    [
        (TEXT, b"x", Append(b"x", "text/plain")),
        (TEXT | CLOSE, b"x", Append(b"x", "text/plain", close=True)),
        (CLOSE, b"", Append(b"", close=True)),
        (CLOSE | {b"content-type": b"no type"}, b"", Append(b"", close=True)),
        (TEXT | {b"stream-seq": b"09"}, b"x", Append(b"x", "text/plain", stream_seq=b"09")),
        (CLOSE | {b"stream-seq": b"09"}, b"", Append(b"", close=True, stream_seq=b"09")),
        (TEXT | producer(b"w", b"3", b"4"), b"x",
         Append(b"x", "text/plain", producer=ProducerHeaders(b"w", 3, 4))),
        (CLOSE | producer(), b"", Append(b"", close=True, producer=ProducerHeaders(b"w", 0, 0))),
    ],
)  # fmt: skip
def test_an_append(headers: Headers, body: bytes, command: Append) -> None:
    assert parse_append(headers, body) == command


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (TEXT, b""),
        (TEXT | {b"stream-closed": b"yes"}, b""),
        ({}, b"x"),
        ({b"content-type": b""}, b"x"),
        ({b"content-type": b"text"}, b"x"),
        (TEXT | without(producer(), b"producer-id"), b"x"),
        (TEXT | without(producer(), b"producer-epoch"), b"x"),
        (TEXT | without(producer(), b"producer-seq"), b"x"),
        (TEXT | producer(id=b""), b"x"),
        (TEXT | producer(id=b"w" * (PRODUCER_ID_BYTES_MAX + 1)), b"x"),
        (TEXT | producer(epoch=b"-1"), b"x"),
        (TEXT | producer(seq=b"1.5"), b"x"),
        (TEXT | producer(seq=b"0, 1"), b"x"),
        (TEXT | {b"stream-seq": b"s" * (STREAM_SEQ_BYTES_MAX + 1)}, b"x"),
        (CLOSE | {b"stream-seq": b"s" * (STREAM_SEQ_BYTES_MAX + 1)}, b""),
    ],
)
def test_an_append_that_is_refused(headers: Headers, body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_append(headers, body)


@pytest.mark.parametrize(
    ("headers", "command"),
    [
        ({}, Create()),
        (TEXT, Create(content_type="text/plain")),
        (CLOSE, Create(closed=True)),
        ({b"stream-ttl": b"60"}, Create(lifetime=Lifetime(ttl_secs=60))),
        ({b"stream-expires-at": b"1970-01-01T00:00:09Z"},
         Create(lifetime=Lifetime(expires_at_ms=9000))),
        ({b"stream-forked-from": b"/v1/stream/a%2Fb"}, Create(fork=ForkRequest("a/b", None, 0))),
        ({b"stream-forked-from": b"https://h:1/v1/stream/a?x=1#y"},
         Create(fork=ForkRequest("a", None, 0))),
        ({b"stream-forked-from": b"/v1/stream/a", b"stream-fork-offset": TOKEN.encode(),
          b"stream-fork-sub-offset": b"3"}, Create(fork=ForkRequest("a", POSITION, 3))),
    ],
)  # fmt: skip
def test_a_create(headers: Headers, command: Create) -> None:
    assert parse_create(headers, b"", source_of) == command


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({b"content-type": b"x"}, InvalidRequest),
        ({b"stream-ttl": b"1", b"stream-expires-at": b"2030-01-01T00:00:00Z"}, InvalidRequest),
        ({b"stream-ttl": b"1.5"}, InvalidRequest),
        ({b"stream-expires-at": b"tomorrow"}, InvalidRequest),
        ({b"stream-fork-offset": TOKEN.encode()}, InvalidRequest),
        ({b"stream-fork-sub-offset": b"1"}, InvalidRequest),
        ({b"stream-forked-from": b"a"}, InvalidRequest),
        ({b"stream-forked-from": b"/v2/stream/a"}, InvalidRequest),
        ({b"stream-forked-from": b"/v1/stream/"}, InvalidName),
        ({b"stream-forked-from": b"/v1/stream/a/../b"}, InvalidName),
        ({b"stream-forked-from": b"/v1/stream/%ff"}, InvalidName),
        ({b"stream-forked-from": b"/v1/stream/a", b"stream-fork-offset": b"now"}, InvalidOffset),
        ({b"stream-forked-from": b"/v1/stream/a", b"stream-fork-offset": b"\xff"}, InvalidOffset),
        ({b"stream-forked-from": b"/v1/stream/a", b"stream-fork-sub-offset": b"-1"},
         InvalidRequest),
        ({b"stream-forked-from": b"http://[::1/v1/stream/a"}, InvalidRequest),
    ],
)  # fmt: skip
def test_a_create_that_is_refused(headers: Headers, error: type[InvalidRequest]) -> None:
    with pytest.raises(error):
        parse_create(headers, b"", source_of)


def test_a_stream_without_a_lifetime_lives_for_ever_by_identity() -> None:
    assert parse_create({}, b"", source_of).lifetime is FOREVER


@pytest.mark.parametrize(
    ("query", "read"),
    [
        ("", Read()),
        ("offset=-1", Read(BEGINNING)),
        ("offset=now", Read(NOW)),
        (f"offset={TOKEN}", Read(POSITION)),
        (f"offset={TOKEN}&live=long-poll&cursor=7", Read(POSITION, Live.LONG_POLL, "7")),
        ("live=sse&offset=now", Read(NOW, Live.SSE)),
        ("offset=%2D1", Read(BEGINNING)),
        ("cursor=", Read(BEGINNING, cursor="")),
        ("x=1&x=2&y", Read()),
        ("&&", Read()),
    ],
)
def test_a_read(query: str, read: Read) -> None:
    assert parse_read(query) == read


@pytest.mark.parametrize(
    "query",
    ["offset=", "offset", "offset=0", "offset=NOW", "offset=-2", f"offset={TOKEN}x",
     "offset=-1&offset=-1", "live=sse", "live=long-poll", "offset=-1&live=", "offset=-1&live=SSE",
     "offset=-1&live=poll", "offset=-1&live=sse&live=sse", "cursor=1&cursor=2", "offset=%FF",
     "x=%ff", "&".join(f"x{i}" for i in range(33))],
)  # fmt: skip
def test_a_read_that_is_refused(query: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_read(query)
