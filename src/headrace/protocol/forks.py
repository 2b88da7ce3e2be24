"""Forks: the point in a source stream where a new stream branches off."""

from __future__ import annotations

from typing import Protocol

from headrace.errors import InvalidOffset, InvalidRequest, OffsetTrimmed, Refused
from headrace.protocol.offsets import Position
from headrace.protocol.requests import ForkRequest
from headrace.protocol.stream import StreamState


class Boundaries(Protocol):
    """Where messages begin and end in one stream."""

    def is_boundary(self, position: Position) -> bool:
        """Whether `position` lies between two messages."""
        ...

    def after(self, messages: int) -> Position:
        """The position after the first `messages` messages."""
        ...


def resolve_point(
    source: StreamState, boundaries: Boundaries, request: ForkRequest
) -> Position | Refused:
    """The position up to which a fork inherits its source.

    A sub-offset counts messages in JSON mode and bytes otherwise; bytes may cut the next message,
    whose first part then stands as a message of its own in the fork.
    """
    anchor = source.tail if request.offset is None else request.offset
    if anchor.messages > source.tail.messages or anchor.bytes > source.tail.bytes:
        return InvalidOffset(f"Stream-Fork-Offset {anchor} is past the tail {source.tail}.")
    if anchor.bytes < source.floor.bytes:
        return OffsetTrimmed(source.floor.token())
    if not boundaries.is_boundary(anchor):
        return InvalidOffset(f"Stream-Fork-Offset {anchor} is not an offset of this stream.")
    if not request.sub_offset:
        return anchor
    if source.is_json:
        return _after_messages(source, boundaries, anchor, request.sub_offset)
    return _after_bytes(source, boundaries, anchor, request.sub_offset)


def _after_messages(
    source: StreamState, boundaries: Boundaries, anchor: Position, count: int
) -> Position | Refused:
    left = source.tail.messages - anchor.messages
    if count > left:
        return _overshoot(count, f"{left} messages follow the fork offset")
    return boundaries.after(anchor.messages + count)


def _after_bytes(
    source: StreamState, boundaries: Boundaries, anchor: Position, count: int
) -> Position | Refused:
    if anchor == source.tail:
        return _overshoot(count, "no data follows the fork offset")
    left = boundaries.after(anchor.messages + 1).bytes - anchor.bytes
    if count > left:
        return _overshoot(count, f"the next message has {left} bytes")
    return Position(anchor.messages + 1, anchor.bytes + count)


def _overshoot(count: int, reason: str) -> Refused:
    return InvalidRequest(f"Stream-Fork-Sub-Offset {count} overshoots: {reason}.")
