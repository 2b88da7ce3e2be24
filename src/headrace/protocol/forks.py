"""Forks: the point in a source stream where a new stream branches off."""

from __future__ import annotations

from headrace.errors import InvalidOffset, InvalidRequest, OffsetTrimmed, Refused
from headrace.protocol.offsets import Position
from headrace.protocol.requests import ForkRequest
from headrace.protocol.stream import StreamState


def fork_anchor(source: StreamState, request: ForkRequest) -> Position | Refused:
    """The offset a fork is asked at, as far as the source's state can tell."""
    anchor = source.tail if request.offset is None else request.offset
    if anchor.messages > source.tail.messages or anchor.bytes > source.tail.bytes:
        return InvalidOffset(f"Stream-Fork-Offset {anchor} is past the tail {source.tail}.")
    if anchor.bytes < source.trim_offset.bytes:
        return OffsetTrimmed(source.trim_offset.token())
    return anchor


def messages_needed(source: StreamState, request: ForkRequest) -> int:
    """How many messages after the anchor `resolve_point` has to know the end of."""
    return request.sub_offset if source.is_json else min(1, request.sub_offset)


def resolve_point(
    source: StreamState, anchor: Position, sub_offset: int, reached: Position | None
) -> Position | Refused:
    """The position up to which a fork inherits its source.

    `reached` is where the messages that are needed end, or the tail if it comes first; None if the
    anchor is not a boundary. A sub-offset counts messages in JSON mode and bytes otherwise; bytes
    may cut the next message, whose first part is then a message of its own in the fork.
    """
    if reached is None:
        return InvalidOffset(f"Stream-Fork-Offset {anchor} is not an offset of this stream.")
    if not sub_offset:
        return anchor
    following = reached.messages - anchor.messages
    if source.is_json:
        if sub_offset > following:
            return _overshoot(sub_offset, f"{following} messages follow the fork offset")
        return reached
    if not following:
        return _overshoot(sub_offset, "no data follows the fork offset")
    size = reached.bytes - anchor.bytes
    if sub_offset > size:
        return _overshoot(sub_offset, f"the next message has {size} bytes")
    return Position(anchor.messages + 1, anchor.bytes + sub_offset)


def _overshoot(count: int, reason: str) -> Refused:
    return InvalidRequest(f"Stream-Fork-Sub-Offset {count} overshoots: {reason}.")
