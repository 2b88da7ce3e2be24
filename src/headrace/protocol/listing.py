"""Listing a bucket: which page is asked for, and how streams appear on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from headrace.errors import InvalidRequest
from headrace.protocol.buckets import ids_of
from headrace.protocol.offsets import Position
from headrace.protocol.requests import Read, parse_query, read_of
from headrace.protocol.stream import StreamState

LIMIT_MAX: Final = 1000  # the draft's own bound, and its default
CHANGES_FROM: Final = "changes_from"
_PARAMETERS: Final = ("prefix", "after", "limit")


class Listing(NamedTuple):
    prefix: str = ""
    after: str = ""
    limit: int = LIMIT_MAX


class Listed(NamedTuple):
    """A stream as readers know it."""

    state: StreamState
    tail: Position
    closed: bool


def parse_feed(query: str) -> Read | None:
    """A read of the bucket's feed, which `changes_from` asks for; None where it does not."""
    fields = parse_query(query, once=(CHANGES_FROM, "live", "cursor"))
    if CHANGES_FROM not in fields:
        return None
    for name in _PARAMETERS:
        if name in fields:
            raise InvalidRequest(f"{name} cannot be used with {CHANGES_FROM}.")
    return read_of({**fields, "offset": fields[CHANGES_FROM]})


def parse_listing(query: str) -> Listing:
    fields = parse_query(query, once=_PARAMETERS)
    return Listing(
        fields.get("prefix", ""), fields.get("after", ""), _parse_limit(fields.get("limit"))
    )


def _parse_limit(value: str | None) -> int:
    if value is None:
        return LIMIT_MAX
    if value.isascii() and value.isdigit() and len(value) <= len(str(LIMIT_MAX)):
        limit = int(value)
        if 1 <= limit <= LIMIT_MAX:
            return limit
    raise InvalidRequest(f"limit must be a number from 1 to {LIMIT_MAX}, not {value[:64]!r}.")


def page_document(
    bucket_id: str, listing: Listing, streams: Sequence[Listed], *, has_more: bool
) -> dict[str, Any]:
    described = [_describe(stream) for stream in streams]
    return {
        "bucket_id": bucket_id,
        "prefix": listing.prefix,
        "stream_count": len(described),
        "streams": described,
        "next_cursor": described[-1]["stream_id"] if has_more else None,
        "has_more": has_more,
    }


def _describe(stream: Listed) -> dict[str, Any]:
    state = stream.state
    return {
        "stream_id": ids_of(state.name)[1],
        "status": "Closed" if stream.closed else "Open",
        "content_type": state.config.content_type,
        "tail_offset": stream.tail.bytes,
        "next_offset": stream.tail.token(),
        "created_at_ms": state.created_at_ms,
        "last_write_at_ms": state.written_ms,
    }
