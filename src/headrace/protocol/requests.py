"""Requests as values: what a client asks of a stream, checked as far as the request alone allows.

A parser takes headers, query and body and returns a command or raises a refusal; whether the
command succeeds is decided against a stream's state in `protocol.stream`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from headrace.errors import InvalidOffset, InvalidRequest, Refused
from headrace.limits import PRODUCER_ID_BYTES_MAX, STREAM_SEQ_BYTES_MAX
from headrace.protocol.bounds import FIELDS as BOUND_FIELDS
from headrace.protocol.bounds import ReadBounds, parse_bounds
from headrace.protocol.expiry import FOREVER, Lifetime
from headrace.protocol.headers import (
    Headers,
    is_true,
    parse_content_type,
    parse_expires_at,
    parse_integer,
    parse_ttl,
)
from headrace.protocol.json_mode import Logged
from headrace.protocol.offsets import BEGINNING, NOW, Position, parse_token
from headrace.protocol.producers import ProducerHeaders, with_seq

QUERY_FIELDS_MAX: Final = 32  # the protocol defines three, this server four more
READ_PARAMETERS: Final = ("offset", "live", "cursor", *sorted(BOUND_FIELDS))


class Live(StrEnum):
    NO = ""
    LONG_POLL = "long-poll"
    SSE = "sse"


class Append(msgspec.Struct, frozen=True, gc=False):
    """POST: add bytes, close, or both.

    `logged` is what a JSON body was found to hold, if that was found out beforehand.
    """

    body: bytes
    content_type: str | None = None
    close: bool = False
    stream_seq: bytes | None = None
    producer: ProducerHeaders | None = None
    logged: Logged | Refused | None = None


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """Where a new stream branches off: `offset` None is the source's tail."""

    source: str
    offset: Position | None
    sub_offset: int


@dataclass(frozen=True, slots=True)
class Create:
    """PUT: a new stream, or the confirmation of an existing one; `logged` as in Append."""

    body: bytes = b""
    content_type: str | None = None
    lifetime: Lifetime = FOREVER
    closed: bool = False
    fork: ForkRequest | None = None
    logged: Logged | Refused | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """GET: `start` is a position, or one of the sentinels BEGINNING and NOW."""

    start: Position | str = BEGINNING
    live: Live = Live.NO
    cursor: str | None = None
    bounds: ReadBounds | None = None


def parse_append(headers: Headers, body: bytes) -> Append:
    producer = None
    if b"producer-id" in headers or b"producer-epoch" in headers or b"producer-seq" in headers:
        producer = _parse_producer(headers)
    close = b"stream-closed" in headers and is_true(headers[b"stream-closed"])
    if not body:
        if not close:
            raise InvalidRequest("The body is empty. Send bytes to append, or Stream-Closed: true.")
        return Append(body, None, True, _parse_stream_seq(headers), producer)
    content_type = headers.get(b"content-type")
    if not content_type:
        raise InvalidRequest("An append needs the Content-Type that its stream was created with.")
    stream_seq = _parse_stream_seq(headers) if b"stream-seq" in headers else None
    return Append(body, parse_content_type(content_type), close, stream_seq, producer)


def append_like(model: Append, headers: Headers, body: bytes) -> Append:
    """The append of a request with the fields of `model`, but for Producer-Seq."""
    producer = model.producer
    if producer is not None:
        seq = parse_integer("Producer-Seq", headers[b"producer-seq"])
        producer = with_seq(producer, seq)
    return Append(body, model.content_type, model.close, model.stream_seq, producer)


def _parse_producer(headers: Headers) -> ProducerHeaders:
    producer_id = headers.get(b"producer-id")
    epoch, seq = headers.get(b"producer-epoch"), headers.get(b"producer-seq")
    if producer_id is None or epoch is None or seq is None:
        raise InvalidRequest("Send Producer-Id, Producer-Epoch and Producer-Seq together.")
    if not producer_id:
        raise InvalidRequest("Producer-Id must not be empty.")
    if len(producer_id) > PRODUCER_ID_BYTES_MAX:
        raise InvalidRequest(f"Producer-Id must not exceed {PRODUCER_ID_BYTES_MAX} bytes.")
    return ProducerHeaders(
        producer_id, parse_integer("Producer-Epoch", epoch), parse_integer("Producer-Seq", seq)
    )


def _parse_stream_seq(headers: Headers) -> bytes | None:
    value = headers.get(b"stream-seq")
    if value is not None and len(value) > STREAM_SEQ_BYTES_MAX:
        raise InvalidRequest(f"Stream-Seq must not exceed {STREAM_SEQ_BYTES_MAX} bytes.")
    return value


def parse_create(headers: Headers, body: bytes, source_of: Callable[[str], str]) -> Create:
    """`source_of` gives the stream that a Stream-Forked-From path names."""
    content_type = headers.get(b"content-type")
    return Create(
        body=body,
        content_type=None if content_type is None else parse_content_type(content_type),
        lifetime=_parse_lifetime(headers),
        closed=is_true(headers.get(b"stream-closed")),
        fork=_parse_fork(headers, source_of),
    )


def _parse_lifetime(headers: Headers) -> Lifetime:
    ttl, expires_at = headers.get(b"stream-ttl"), headers.get(b"stream-expires-at")
    if ttl is not None and expires_at is not None:
        raise InvalidRequest("Send Stream-TTL or Stream-Expires-At, not both.")
    if ttl is not None:
        return Lifetime(ttl_secs=parse_ttl(ttl))
    if expires_at is not None:
        return Lifetime(expires_at_ms=parse_expires_at(expires_at))
    return FOREVER


def _parse_fork(headers: Headers, source_of: Callable[[str], str]) -> ForkRequest | None:
    source = headers.get(b"stream-forked-from")
    offset, sub_offset = headers.get(b"stream-fork-offset"), headers.get(b"stream-fork-sub-offset")
    if source is None:
        if offset is not None or sub_offset is not None:
            raise InvalidRequest("Stream-Fork-Offset needs Stream-Forked-From.")
        return None
    return ForkRequest(
        source=source_of(source.decode("latin-1")),
        offset=None if offset is None else parse_token(offset.decode("latin-1")),
        sub_offset=0 if sub_offset is None else parse_integer("Stream-Fork-Sub-Offset", sub_offset),
    )


def parse_query(query: str, once: Sequence[str] = READ_PARAMETERS) -> dict[str, str]:
    """Query parameters by name; those in `once` may occur only once."""
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX
        )
    except ValueError:
        raise InvalidRequest("The query string is not UTF-8, or has too many fields.") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        for name in once:
            if sum(pair[0] == name for pair in pairs) > 1:
                raise InvalidRequest(f"The parameter {name} appears more than once.")
    return fields


def parse_read(query: str) -> Read:
    if not query:
        return Read()
    return read_of(parse_query(query))


def read_of(fields: Mapping[str, str]) -> Read:
    """A read, from query parameters by name."""
    live = _parse_live(fields.get("live"))
    bounds = parse_bounds(fields)
    if bounds is not None and live is not Live.NO:
        raise InvalidRequest(f"until, max_messages, max_bytes and format do not work with {live}.")
    offset = fields.get("offset")
    if offset is None:
        if live is not Live.NO:
            raise InvalidRequest(f"live={live} needs an offset: -1, now, or a Stream-Next-Offset.")
        return Read(BEGINNING, live, fields.get("cursor"), bounds)
    return Read(parse_offset(offset), live, fields.get("cursor"), bounds)


def _parse_live(value: str | None) -> Live:
    if value is None:
        return Live.NO
    try:
        return Live(value) if value else _refuse_live(value)
    except ValueError:
        return _refuse_live(value)


def _refuse_live(value: str) -> Live:
    raise InvalidRequest(f"live must be long-poll or sse, not {value[:64]!r}.")


def parse_offset(value: str) -> Position | str:
    if value in (BEGINNING, NOW):
        return value
    if not value:
        raise InvalidOffset("The offset is empty. Use -1, now, or a Stream-Next-Offset.")
    return parse_token(value, "-1, now, or ")
