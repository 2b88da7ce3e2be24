"""Reading a stream that branches off another: whole messages, across the branch."""

from __future__ import annotations

from collections.abc import Callable

from headrace.protocol.offsets import Position
from headrace.storage.base import Lengths, Range

Read = Callable[[Position, Position, int], Range | None]


def read_branched(
    inherited: Read, own: Read, base: Position, start: Position, limit: Position, bytes_max: int
) -> Range | None:
    """From `start`, which lies before the branch at `base`; past it only while there is room."""
    found = inherited(start, min(limit, base), bytes_max)
    if found is None:
        return None
    surplus = found.end.bytes - base.bytes
    if surplus > 0:
        # The branch cuts a message of the source: here it ends at the cut.
        lengths = [*found.lengths[:-1], found.lengths[-1] - surplus]
        found = Range(base, found.data[:-surplus], lengths)
    room = bytes_max - len(found.data)
    if found.end != base or limit <= base or room <= 0:
        return found
    rest = own(base, limit, room)
    if rest is None or len(rest.data) > room:
        return found
    return Range(rest.end, found.data + rest.data, [*found.lengths, *rest.lengths])


def lengths_by_reading(
    read: Read, start: Position, limit: Position, count: int, bytes_max: int
) -> Lengths | None:
    """Lengths of up to `count` messages before `limit`; None where `start` is no boundary."""
    lengths: list[int] = []
    while start != limit:
        found = read(start, limit, bytes_max if count else 0)
        if found is None:
            return None
        lengths += found.lengths
        if len(lengths) >= count or found.end == start:
            break
        start = found.end
    return lengths[:count]
