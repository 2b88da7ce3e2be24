"""Reads: chunks of what is visible, and where messages end, from memory or from a disk.

What is in memory is answered in the caller's stack frame. What is not is read off the loop; where
such a read ends only because a branch or memory begins, it goes on there while there is room, so
that a chunk holds the same messages wherever they are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import msgspec

from headrace.engine.stream_runtime import Stream
from headrace.errors import HeadraceError, InvalidOffset, OffsetTrimmed
from headrace.protocol.offsets import BEGINNING, START, Position
from headrace.storage.base import ColdRead, Lengths, Range, Storage

SEEK_WINDOW_BYTES = 256 * 1024
SHARED_BYTES_MIN = 32 * 1024  # copying less is as fast as a lookup


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """A range of a stream as one answer carries it."""

    start: Position
    end: Position
    data: bytes
    up_to_date: bool
    closed: bool
    lengths: Lengths = ()


ReadOutcome = Chunk | HeadraceError
_Asked = tuple[Stream, Position, Position, bool, int]
PartReply = Callable[[Range | HeadraceError | None], None]
SeekReply = Callable[[Position | HeadraceError | None], None]


def start_position(
    stream: Stream, start: Position | str, *, accept_plus_one: bool = False
) -> Position:
    """Where a read begins, as far as a stream's state can tell."""
    trim_offset = stream.visible_trim_offset
    if isinstance(start, str):
        if start != BEGINNING:
            return stream.visible
        if stream.visible_snapshot is not None:
            # A snapshot replaces the beginning, even a snapshot at the first offset.
            raise OffsetTrimmed(trim_offset.token())
        start = START
    if start.bytes < trim_offset.bytes:
        raise OffsetTrimmed(trim_offset.token())
    if accept_plus_one and _minus_one(start) == stream.visible:
        return stream.visible
    if start > stream.visible:
        raise InvalidOffset(f"The offset {start} is past the tail, {stream.visible}.")
    return start


def _minus_one(start: Position) -> Position:
    """The offset that a client with a plus one of its own was given: of the same message count.

    Two boundaries never have one message count, so this cannot be the wrong one.
    """
    return Position(start.messages, start.bytes - 1)


class Reads:
    def __init__(self, storage: Storage, *, accept_plus_one: bool = False) -> None:
        self._storage = storage
        self._accept_plus_one = accept_plus_one
        self._last: tuple[_Asked, Chunk] | None = None

    def forget(self) -> None:
        """Called once a second: what was read last is kept for those who want the same at once."""
        self._last = None

    def chunk(
        self,
        stream: Stream,
        start: Position,
        bytes_max: int,
        reply: Callable[[ReadOutcome], None],
        *,
        exact: bool = False,
    ) -> None:
        visible, closed = stream.visible, stream.visible_closed
        if start == visible:
            reply(Chunk(start, start, b"", True, closed))
            return
        asked = (stream, start, visible, closed, bytes_max)
        if self._last is not None and self._last[0] == asked:
            # A large message wakes all readers at its tail: one copy of it is enough for them.
            reply(self._last[1])
            return

        def found(part: Range | HeadraceError | None) -> None:
            # A worker read while the loop went on: a trim meanwhile is an answer, not damage.
            if not isinstance(part, Range) and start < stream.visible_trim_offset:
                # Given up while it was being read.
                reply(OffsetTrimmed(stream.visible_trim_offset.token()))
            elif isinstance(part, HeadraceError):
                reply(part)
            elif part is None and self._accept_plus_one and not exact and start.bytes > 0:
                self.chunk(stream, _minus_one(start), bytes_max, reply, exact=True)
            elif part is None:
                reply(InvalidOffset(f"The offset {start} is not one this stream returned."))
            else:
                up_to_date = part.end == visible
                ended = up_to_date and closed
                chunk = Chunk(start, part.end, part.data, up_to_date, ended, part.lengths)
                if len(part.data) >= SHARED_BYTES_MIN:
                    self._last = asked, chunk
                reply(chunk)

        self.part(stream, start, visible, bytes_max, found)

    def seek(self, stream: Stream, start: Position, count: int, reply: SeekReply) -> None:
        """The end of `count` messages from `start`, or the tail; None off a boundary."""
        _Seek(self, stream, start, count, reply).go_on()

    def part(
        self, stream: Stream, start: Position, limit: Position, bytes_max: int, reply: PartReply
    ) -> None:
        part = stream.log.read(start, limit, bytes_max)
        if callable(part):
            _ColdRead(self._storage, stream, limit, bytes_max, reply).begin(part)
        else:
            reply(part)


class _ColdRead:
    """A read that begins on a disk, and goes on past the seams of the log while there is room."""

    def __init__(
        self, storage: Storage, stream: Stream, limit: Position, bytes_max: int, reply: PartReply
    ) -> None:
        self._storage = storage
        self._log = stream.log
        self._limit = limit
        self._room = bytes_max
        self._reply = reply
        self._found: list[Range] = []

    def begin(self, cold: ColdRead) -> None:
        self._storage.run_in_thread(cold, self._take)

    def _take(self, found: Range | HeadraceError | None) -> None:
        if not self._found and not isinstance(found, Range):
            self._reply(found)
        elif not self._add(found) or not self._goes_on():
            self._finish()
        else:
            more = self._log.read(self._found[-1].end, self._limit, self._room)
            if callable(more):
                self.begin(more)
            else:
                self._add(more)
                self._finish()

    def _add(self, found: Range | HeadraceError | None) -> bool:
        """Take what was found, if there is room for it; the first part is taken in any case."""
        if not isinstance(found, Range):
            return False
        if self._found and not 0 < len(found.data) <= self._room:
            return False
        self._room -= len(found.data)
        self._found.append(found)
        return True

    def _goes_on(self) -> bool:
        end = self._found[-1].end
        return end != self._limit and self._room > 0 and self._log.is_tier_boundary(end)

    def _finish(self) -> None:
        parts = self._found
        if len(parts) == 1:
            self._reply(parts[0])
            return
        data = b"".join(part.data for part in parts)
        self._reply(Range(parts[-1].end, data, [*chain(*(part.lengths for part in parts))]))


class _Seek:
    """Messages counted from a position on: by what is in memory, or by reading what is not."""

    def __init__(
        self, reads: Reads, stream: Stream, start: Position, count: int, reply: SeekReply
    ) -> None:
        self._reads = reads
        self._stream = stream
        self._tail = stream.state.tail
        self._position = start
        self._left = count
        self._reply = reply
        self._is_first = True
        self._is_looping = False
        self._found: list[Range] = []

    def go_on(self) -> None:
        """Parts that are found at once are met by this loop, not by a deeper call."""
        self._is_looping = True
        while self._position != self._tail and (self._is_first or self._left > 0):
            hot = self._stream.log.seek(self._position, self._left, None)
            if hot is not None:
                self._position = hot
                break
            self._reads.part(
                self._stream, self._position, self._tail, SEEK_WINDOW_BYTES, self._take
            )
            if not self._found:
                self._is_looping = False
                return
            self._advance(self._found.pop())
        self._reply(min(self._position, self._tail))

    def _take(self, part: Range | HeadraceError | None) -> None:
        if not isinstance(part, Range):
            self._reply(part)
        elif self._is_looping:
            self._found.append(part)
        else:
            self._advance(part)
            self.go_on()

    def _advance(self, part: Range) -> None:
        self._is_first = False
        if len(part.lengths) <= self._left:
            self._left -= len(part.lengths)
            self._position = part.end
        else:
            start, size = self._position, sum(part.lengths[: self._left])
            self._position = Position(start.messages + self._left, start.bytes + size)
            self._left = 0
