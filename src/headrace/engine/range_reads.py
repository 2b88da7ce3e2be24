"""Bounded reads and seeks: ranges that end where a client says, not where the stream does.

What is read is cut after the fact, at boundaries that storage gave. So a bound that falls inside
a message is noticed where a reader meets it, and never returns half a message.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Final

from headrace.engine.engine import Engine
from headrace.engine.reads import Chunk, ReadOutcome
from headrace.engine.stream_runtime import Stream
from headrace.errors import HeadraceError, InvalidOffset
from headrace.protocol.bounds import ReadBounds
from headrace.protocol.offsets import Position

# How far a seek looks ahead where only reading tells; a bound further away is met in steps.
SEEK_BYTES_MAX: Final = 64 * 1024 * 1024

SeekReply = Callable[[Position | HeadraceError], None]


def read_bounded(
    engine: Engine,
    stream: Stream,
    start: Position,
    bounds: ReadBounds,
    reply: Callable[[ReadOutcome], None],
) -> None:
    """What follows `start` within `bounds`, up to one chunk."""
    bytes_max = engine.limits.read_chunk_bytes
    if bounds.bytes_max is not None:
        bytes_max = min(bytes_max, bounds.bytes_max)
    until = bounds.until
    if until is not None:
        check_until(stream, start, until)
        if until == start:
            up_to_date = start == stream.visible
            ended = up_to_date and stream.visible_closed
            reply(Chunk(start, start, b"", up_to_date, ended))
            return
        bytes_max = min(bytes_max, until.bytes - start.bytes)

    def found(chunk: ReadOutcome) -> None:
        if isinstance(chunk, HeadraceError):
            reply(chunk)
        elif until is not None and _passes(chunk.end, until):
            reply(InvalidOffset(f"until={until} is not an offset this stream returned."))
        else:
            reply(first_messages(chunk, bounds.messages_max))

    engine.read(stream, start, found, bytes_max)


def check_until(stream: Stream, start: Position, until: Position) -> None:
    if until > stream.visible:
        raise InvalidOffset(f"until={until} is past the tail, {stream.visible}.")
    if until != start and (until.messages <= start.messages or until.bytes <= start.bytes):
        raise InvalidOffset(f"until={until} is before the offset to read from, {start}.")


def _passes(end: Position, until: Position) -> bool:
    """Whether a chunk that ends at `end` shows that `until` is not a boundary."""
    if end.bytes == until.bytes:
        return end != until
    return end.bytes > until.bytes or end.messages >= until.messages


def first_messages(chunk: Chunk, count: int | None) -> Chunk:
    """The chunk, cut to its first `count` messages."""
    if count is None or len(chunk.lengths) <= count:
        return chunk
    lengths = chunk.lengths[:count]
    size = sum(lengths)
    end = Position(chunk.start.messages + count, chunk.start.bytes + size)
    return Chunk(chunk.start, end, chunk.data[:size], False, False, lengths)


def seek(
    engine: Engine,
    stream: Stream,
    start: Position,
    messages_max: int | None,
    bytes_max: int | None,
    reply: SeekReply,
) -> None:
    """The end of what `start` is followed by within both bounds, and at least one message."""
    visible = stream.visible
    position = stream.log.seek(start, messages_max, bytes_max)
    if position is not None:
        reply(min(position, visible))
    else:
        _Seek(engine, stream, start, messages_max, bytes_max, reply).go_on()


class _Seek:
    """A seek through what is not in memory: reads on until a bound is met."""

    def __init__(
        self,
        engine: Engine,
        stream: Stream,
        start: Position,
        messages_max: int | None,
        bytes_max: int | None,
        reply: SeekReply,
    ) -> None:
        self._engine = engine
        self._stream = stream
        self._visible = stream.visible
        self._position = start
        self._messages_end = None if messages_max is None else start.messages + messages_max
        reach_bytes = SEEK_BYTES_MAX if bytes_max is None else min(bytes_max, SEEK_BYTES_MAX)
        self._bytes_end = start.bytes + reach_bytes
        self._first = True
        self._reply = reply
        self._found: list[ReadOutcome] = []
        self._looping = False

    def go_on(self) -> None:
        """Read on; an answer that comes at once is met by this loop, not by a deeper call."""
        self._looping = True
        while not self._is_over():
            self._engine.read(self._stream, self._position, self._take)
            if not self._found:
                self._looping = False
                return
            found = self._found.pop()
            if isinstance(found, HeadraceError):
                self._reply(found)
                return
            self._advance(found)
        self._reply(min(self._position, self._visible))

    def _take(self, found: ReadOutcome) -> None:
        if self._looping:
            self._found.append(found)
        elif isinstance(found, HeadraceError):
            self._reply(found)
        else:
            self._advance(found)
            self.go_on()

    def _is_over(self) -> bool:
        position = self._position
        return (
            position >= self._visible
            or (self._messages_end is not None and position.messages >= self._messages_end)
            or (not self._first and position.bytes >= self._bytes_end)
        )

    def _advance(self, chunk: Chunk) -> None:
        start, room = self._position, len(chunk.lengths)
        if self._messages_end is not None:
            room = min(room, self._messages_end - start.messages)
        ends = list(accumulate(chunk.lengths[:room], initial=start.bytes))
        taken = sum(end <= self._bytes_end for end in ends[1:])
        if taken < room:
            # The bound by bytes is met; a first message beyond it is taken all the same.
            taken = max(taken, 1 if self._first else 0)
            self._bytes_end = 0
        self._first = False
        self._position = Position(start.messages + taken, ends[taken])
