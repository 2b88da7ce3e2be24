"""Reads: chunks of what is visible, and the lengths of messages, from memory or from a disk.

What is in memory is answered in the caller's stack frame. What is not is read off the loop; where
such a read ends only because a branch or memory begins, it goes on there while there is room, so
that a chunk holds the same messages wherever they are kept.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.engine.tails import Stream
from headrace.errors import HeadraceError, InvalidOffset, OffsetTrimmed
from headrace.protocol.offsets import BEGINNING, START, Position
from headrace.storage.base import Lengths, Range, Storage

LENGTHS_WINDOW_BYTES = 256 * 1024


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """A range of a stream as one answer carries it."""

    start: Position
    end: Position
    data: bytes
    up_to_date: bool
    closed: bool
    lengths: Lengths = ()


ReadOutcome = Chunk | HeadraceError
PartReply = Callable[[Range | HeadraceError | None], None]


def start_position(stream: Stream, start: Position | str) -> Position:
    """Where a read begins, as far as a stream's state can tell."""
    floor = stream.visible_floor
    if isinstance(start, str):
        if start != BEGINNING:
            return stream.visible
        if stream.visible_snapshot is not None:
            # The beginning is what the snapshot tells, wherever it stands.
            raise OffsetTrimmed(floor.token())
        start = START
    if start.bytes < floor.bytes:
        raise OffsetTrimmed(floor.token())
    if start > stream.visible:
        raise InvalidOffset(f"The offset {start} is past the tail, {stream.visible}.")
    return start


class Reads:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def chunk(
        self,
        stream: Stream,
        start: Position,
        bytes_max: int,
        reply: Callable[[ReadOutcome], None],
    ) -> None:
        visible, closed = stream.visible, stream.visible_closed
        if start == visible:
            reply(Chunk(start, start, b"", True, closed))
            return

        def found(part: Range | HeadraceError | None) -> None:
            if not isinstance(part, Range) and start < stream.visible_floor:
                # Given up while it was being read.
                reply(OffsetTrimmed(stream.visible_floor.token()))
            elif isinstance(part, HeadraceError):
                reply(part)
            elif part is None:
                reply(InvalidOffset(f"The offset {start} is not one this stream returned."))
            else:
                up_to_date = part.end == visible
                ended = up_to_date and closed
                reply(Chunk(start, part.end, part.data, up_to_date, ended, part.lengths))

        self._part(stream, start, visible, bytes_max, found)

    def lengths(
        self,
        stream: Stream,
        start: Position,
        count: int,
        reply: Callable[[list[int] | HeadraceError | None], None],
    ) -> None:
        """Lengths of `count` messages from `start`; None where that is not a boundary."""
        self._lengths(stream, start, count, [], reply)

    def _lengths(
        self,
        stream: Stream,
        start: Position,
        count: int,
        found: list[int],
        reply: Callable[[list[int] | HeadraceError | None], None],
    ) -> None:
        tail = stream.state.tail
        if start == tail or (found and len(found) >= count):
            reply(found[:count])
            return

        def more(part: Range | HeadraceError | None) -> None:
            if part is None or isinstance(part, HeadraceError):
                reply(part)
            else:
                found.extend(part.lengths)
                self._lengths(stream, part.end, count, found, reply)

        self._part(stream, start, tail, LENGTHS_WINDOW_BYTES, more)

    def _part(
        self, stream: Stream, start: Position, limit: Position, bytes_max: int, reply: PartReply
    ) -> None:
        part = stream.log.read(start, limit, bytes_max)
        if not callable(part):
            reply(part)
            return
        self._storage.run_cold(
            part, lambda found: self._past_seam(stream, limit, bytes_max, found, reply)
        )

    def _past_seam(
        self,
        stream: Stream,
        limit: Position,
        bytes_max: int,
        found: Range | HeadraceError | None,
        reply: PartReply,
    ) -> None:
        if not isinstance(found, Range):
            reply(found)
            return
        room = bytes_max - len(found.data)
        if found.end == limit or room <= 0 or not stream.log.is_seam(found.end):
            reply(found)
            return

        def joined(more: Range | HeadraceError | None) -> None:
            if isinstance(more, Range) and 0 < len(more.data) <= room:
                lengths = [*found.lengths, *more.lengths]
                reply(Range(more.end, found.data + more.data, lengths))
            else:
                reply(found)

        self._part(stream, found.end, limit, room, joined)
