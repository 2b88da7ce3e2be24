"""Trimming a stream: what a request asks for, and where the stream would begin."""

from __future__ import annotations

from typing import Final

import msgspec
import orjson

from headrace.errors import (
    BodyTooLarge,
    InvalidOffset,
    InvalidRequest,
    OffsetBeyondTail,
    Refused,
    SnapshotInUse,
)
from headrace.protocol.bounds import parse_bound
from headrace.protocol.offsets import NOW, Position, parse_token
from headrace.protocol.stream import StreamState

BODY_BYTES_MAX: Final = 32 * 1024  # a name of 4 KiB, all of it escaped
_FIELDS: Final = frozenset({"stream", "before", "keep_messages"})
_SHAPE: Final = (
    'The body must be {"stream": name} with one of "before", an offset or now, and '
    '"keep_messages", a number.'
)


class Trim(msgspec.Struct, frozen=True):
    """Give up what is before a position (None: the tail), or all but the last messages."""

    stream: str
    before: Position | None = None
    keep_messages: int | None = None


def parse_trim(body: bytes) -> Trim:
    if len(body) > BODY_BYTES_MAX:
        raise BodyTooLarge(BODY_BYTES_MAX)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not JSON: {error.msg}.") from None
    if not isinstance(document, dict) or not isinstance(document.get("stream"), str):
        raise InvalidRequest(_SHAPE)
    unknown = document.keys() - _FIELDS
    if unknown:
        raise InvalidRequest(f"Unknown field {sorted(unknown)[0][:64]!r}. {_SHAPE}")
    before, keep = document.get("before"), document.get("keep_messages")
    if (before is None) == (keep is None):
        raise InvalidRequest(_SHAPE)
    if keep is not None:
        return Trim(document["stream"], keep_messages=parse_bound("keep_messages", keep))
    if not isinstance(before, str):
        raise InvalidOffset("before must be now, or a Stream-Next-Offset.")
    return Trim(document["stream"], None if before == NOW else parse_token(before, "now, or "))


def excess_messages(state: StreamState, keep_messages: int) -> int:
    """How many messages at the beginning are more than are to be kept."""
    return max(0, state.tail.messages - keep_messages - state.trim_offset.messages)


def decide_trim(state: StreamState, beginning: Position) -> Refused | None:
    """Why the stream cannot begin there, as far as its state can tell; None if it can.

    What is trimmed already stays so: a beginning before the trim offset is met.
    """
    if beginning.bytes > state.tail.bytes or beginning.messages > state.tail.messages:
        return OffsetBeyondTail(beginning.token(), state.tail.token())
    if state.snapshot is not None and beginning > state.trim_offset:
        return SnapshotInUse(state.name)
    return None
