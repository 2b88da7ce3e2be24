"""Reads of a fork: whole messages, across the point where it branches off.

A read has one owner at a time, the log itself or the one it branched from, whose last message the
branch may cut. What follows is added while it is in memory and there is room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.limits import INTEGER_MAX
from headrace.protocol.offsets import Position
from headrace.storage.base import ColdRead, Range

ReadOne = Callable[[Position, Position, int], Range | ColdRead | None]
SeekResult = tuple[Position | None, Position]
"""Where so many messages end in the log that has them, and where a branch leaves that log."""
PAST_EVERY_TAIL: Final = Position(INTEGER_MAX, INTEGER_MAX)  # past the tail of every stream


def clip(found: Range | None, end: Position) -> Range | None:
    """A range that ends at the branch at the latest, inside a message if need be."""
    if found is None or found.end.bytes <= end.bytes:
        return found
    # A fork may begin within a message of its source, so its last message here is a part of one.
    surplus = found.end.bytes - end.bytes
    lengths = [*found.lengths[:-1], found.lengths[-1] - surplus]
    return Range(end, found.data[:-surplus], lengths)


def read_across_forks(
    read_one: ReadOne, start: Position, limit: Position, bytes_max: int
) -> Range | ColdRead | None:
    """What `read_one` finds from `start`, and goes on finding in memory, as one range."""
    found = read_one(start, limit, bytes_max)
    while isinstance(found, Range) and found.end != limit:
        room = bytes_max - len(found.data)
        more = read_one(found.end, limit, room) if room > 0 else None
        if not isinstance(more, Range) or not 0 < len(more.data) <= room:
            return found
        found = Range(more.end, found.data + more.data, [*found.lengths, *more.lengths])
    return found


def seek_across_forks(
    seek_one: Callable[[Position, int | None], SeekResult],
    start: Position,
    messages_max: int | None,
) -> Position | None:
    """The end of so many messages from `start`, across branches; None if memory cannot tell."""
    position, left = start, messages_max
    while True:
        # Asked for no message at all, too: whether `start` is a boundary is for the log to say.
        found, branch = seek_one(position, left)
        if found is None or found.messages < branch.messages:
            return found
        if left is not None:
            left -= branch.messages - position.messages
        position = branch  # which may cut the last message
        if left == 0:
            return position
