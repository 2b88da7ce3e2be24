"""Live reads: long-poll and SSE, without a task per reader.

A reader is an object at the tail of a stream. The engine calls it when more is visible, its
exchange when the client can take more, and a deadline queue when its time is up.
"""

from __future__ import annotations

import asyncio
import random
from itertools import islice
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from headrace.engine.engine import Engine
from headrace.engine.reads import Chunk, ReadOutcome
from headrace.engine.stream_runtime import Stream
from headrace.errors import HeadraceError, StreamNotFound
from headrace.http.connections.send_windows import EVENT_WINDOW_BYTES, SharedEvent, UnsentBudget
from headrace.http.deadlines import DeadlineQueue
from headrace.http.exchange import Exchange, Frame
from headrace.http.handlers.reads import chunk_response
from headrace.protocol import responses, sse
from headrace.protocol.cursors import JITTER_SECS_MAX, next_cursor
from headrace.protocol.offsets import Position
from headrace.protocol.requests import Read

# What one event may hold, unless one message is larger; that is sent in windows of as much. So a
# reader that stops reading costs no more than this on top of its socket's buffer.
EVENT_BYTES_MAX: Final = EVENT_WINDOW_BYTES
CHARACTER_REACH_BYTES_MAX: Final = 1024 * 1024
BOUNDARIES_MAX: Final = 10_000  # examined for the end of a character, from the last one back; 5 ms


class _SharedFrame(NamedTuple):
    """The frame encoded last, and what it was encoded from."""

    stream: Stream
    start: Position
    end: Position
    closed: bool
    cursor: int
    frame: Frame


class LiveReads:
    """Opens live reads and holds what they share: deadlines, counters, the last frame."""

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        unsent: UnsentBudget,
        long_poll_timeout_secs: float,
        sse_rotation_secs: float,
    ) -> None:
        self.engine = engine
        self.unsent = unsent
        self.long_polls = DeadlineQueue(loop, long_poll_timeout_secs)
        self.rotations = DeadlineQueue(loop, sse_rotation_secs) if sse_rotation_secs else None
        self.event_bytes_max = min(EVENT_BYTES_MAX, engine.limits.read_chunk_bytes)
        self.long_poll_count = 0
        self.sse_count = 0
        self.polled_tails = 0  # streams that polls of many tails wait on, counted once per poll
        self._last: _SharedFrame | None = None
        self._large: WeakValueDictionary[tuple[int, Position, Position], SharedEvent] = (
            WeakValueDictionary()
        )

    def long_poll(
        self, stream: Stream, start: Position, read: Read, exchange: Exchange, private: bool
    ) -> None:
        """Wait at `start`, which is the tail of an open stream."""
        poll = LongPoll(self, stream, start, read.cursor, exchange, private)
        self.engine.attach_reader(stream, poll)
        self.long_poll_count += 1
        self.long_polls.add(poll)
        exchange.hold(poll)

    def events(self, stream: Stream, start: Position, read: Read, exchange: Exchange) -> None:
        """Stream events from `start`; an offset that is none is refused before anything is sent."""

        def found(first: ReadOutcome) -> None:
            if isinstance(first, HeadraceError):
                exchange.respond(responses.problem(first))
            else:
                self._open(EventReader(self, stream, start, read.cursor, exchange), first)

        self.engine.read(stream, start, found, self.event_bytes_max)

    def _open(self, reader: EventReader, first: Chunk) -> None:
        stream, exchange = reader.stream, reader.exchange
        try:
            self.engine.attach_reader(stream, reader)
        except HeadraceError as refusal:
            exchange.respond(responses.problem(refusal))
            return
        self.sse_count += 1
        if self.rotations is not None:
            self.rotations.add(reader)
        exchange.start(responses.event_stream(stream.state))
        exchange.hold(reader)
        reader.begin(first)

    def cursor(self, echoed: str | None) -> int:
        jitter_secs = random.randint(1, JITTER_SECS_MAX) if echoed else 0
        return next_cursor(self.engine.clock.now_ms(), echoed, jitter_secs)

    def frame(self, stream: Stream, chunk: Chunk, cursor: int) -> Frame:
        """A data event and its control event, encoded once for all who are in the same place."""
        last = self._last
        key = (stream, chunk.start, chunk.end, chunk.closed, cursor)
        if last is not None and last[:5] == key and chunk.up_to_date:
            return last.frame
        data = sse.data_event(sse.payload_of(stream.state, chunk.data)) if chunk.data else b""
        frame = Frame(data + control_event(chunk, cursor))
        # Of readers at the tail only: those that catch up are each in a place of their own, and
        # would push out the one frame that is shared.
        if chunk.up_to_date:
            self._last = _SharedFrame(*key, frame)
        return frame

    def large_event(self, stream: Stream, chunk: Chunk) -> SharedEvent | None:
        """A data event that is too large to keep for each reader; None while there is no room.

        One that is being sent to another reader is already in memory and takes no more room.
        """
        key = (stream.state.id, chunk.start, chunk.end)
        event = self._large.get(key)
        if event is None:
            if self.unsent.is_exceeded:
                return None
            payload = sse.payload_of(stream.state, chunk.data)
            event = self._large[key] = SharedEvent(payload, self.unsent)
        event.acquire()
        return event

    def forget_frame(self, stream: Stream) -> None:
        if self._last is not None and self._last.stream is stream:
            self._last = None


def control_event(chunk: Chunk, cursor: int) -> bytes:
    return sse.control_event(
        chunk.end, cursor=cursor, up_to_date=chunk.up_to_date, closed=chunk.closed
    )


class LongPoll:
    """One long-poll request, until data, closure, deletion, timeout or disconnect."""

    __slots__ = ("_cursor", "_done", "_exchange", "_live", "_private", "_start", "_stream")

    def __init__(
        self,
        live: LiveReads,
        stream: Stream,
        start: Position,
        cursor: str | None,
        exchange: Exchange,
        private: bool,
    ) -> None:
        self._live = live
        self._stream = stream
        self._start = start
        self._cursor = cursor
        self._exchange = exchange
        self._private = private
        self._done = False

    def on_advance(self, stream: Stream) -> None:
        """Nothing may be new: what is announced now may have come before this poll."""
        if stream.visible != self._start or stream.visible_closed:
            self._answer()

    def on_deadline(self) -> None:
        self._answer()

    def on_drain(self) -> None:
        self._answer()

    def on_gone(self, stream: Stream) -> None:
        self._detach()
        self._exchange.respond(responses.problem(StreamNotFound(stream.state.name)))

    def on_fault(self, fault: HeadraceError) -> None:
        self._detach()
        self._exchange.respond(responses.problem(fault))

    def on_disconnect(self) -> None:
        self._detach()

    def on_writable(self) -> None:
        """Nothing was sent yet."""

    def _answer(self) -> None:
        self._detach()
        engine, stream = self._live.engine, self._stream
        cursor = self._live.cursor(self._cursor)
        engine.read(
            stream,
            self._start,
            lambda found: self._exchange.respond(
                long_poll_answer(engine, stream, found, cursor, self._private)
            ),
        )

    def _detach(self) -> None:
        if self._done:
            return
        self._done = True
        self._live.long_polls.remove(self)
        self._live.long_poll_count -= 1
        self._live.engine.detach_reader(self._stream, self)


def long_poll_answer(
    engine: Engine, stream: Stream, found: ReadOutcome, cursor: int, private: bool
) -> responses.Response:
    if isinstance(found, HeadraceError):
        return responses.problem(found)
    if not found.data:
        return responses.nothing_new(
            found.end, closed=found.closed, cursor=None if found.closed else cursor
        )
    return chunk_response(engine, stream, found, private=private, cursor=cursor)


class EventReader:
    """One SSE response, from its first event to rotation, end of stream or disconnect."""

    __slots__ = (
        "_at",
        "_complete",
        "_done",
        "_echoed",
        "_ending",
        "_event",
        "_event_of",
        "_held_at",
        "_last_cursor",
        "_live",
        "_position",
        "_pumping",
        "_reach_bytes",
        "_reading",
        "_starved",
        "exchange",
        "stream",
    )

    def __init__(
        self,
        live: LiveReads,
        stream: Stream,
        start: Position,
        cursor: str | None,
        exchange: Exchange,
    ) -> None:
        self.stream = stream
        self.exchange = exchange
        self._live = live
        self._position = start
        self._echoed = cursor
        self._last_cursor = 0
        self._held_at: Position | None = None
        self._reach_bytes = live.event_bytes_max
        self._pumping = False
        self._reading = False
        self._starved = False
        self._event: SharedEvent | None = None
        self._event_of: Chunk | None = None
        self._at = 0
        self._ending = False
        self._complete = False
        self._done = False

    def begin(self, first: Chunk) -> None:
        """Send what is there, or a control event with the tail."""
        if first.data:
            self._take(first)
        else:
            self._send(first)
        # The whole chunk ends within a character, so nothing of it was sent. The client gets a
        # control event all the same, to know where it is.
        if first.data and self._position == first.start and first.up_to_date and not self._starved:
            self._send(Chunk(first.start, first.start, b"", False, False))
        self._pump()

    def on_advance(self, stream: Stream) -> None:
        self._pump()

    def on_writable(self) -> None:
        self._pump()

    def on_gone(self, stream: Stream) -> None:
        self._live.forget_frame(stream)
        self._finish()

    def on_fault(self, fault: HeadraceError) -> None:
        """What was sent so far is whole; the client reconnects where it ended."""
        self._finish()

    def on_deadline(self) -> None:
        """An event under way is finished first, if that takes no longer than another period."""
        if self._event is None or self._ending or self._live.rotations is None:
            self._finish()
        else:
            self._ending = True
            self._live.rotations.add(self)

    def on_drain(self) -> None:
        self._finish()

    def on_disconnect(self) -> None:
        self._detach()

    def on_room(self) -> None:
        self._starved = False
        self._pump()

    def on_cut(self) -> None:
        self._detach()
        self.exchange.abort()

    def _pump(self) -> None:
        """Send until the client or the stream has had enough; a read off the loop comes back."""
        if self._pumping or self._reading:
            return
        # Sending may bring a callback that pumps again; this loop then goes on with what it finds.
        self._pumping = True
        stream = self.stream
        while self._may_send():
            if self._complete:
                self._finish()
                break
            if self._event is not None:
                self._send_window(self._event)
                continue
            at_tail = self._position == stream.visible or self._held_at == stream.visible
            if at_tail and not stream.visible_closed:
                break
            if self._position < stream.visible_trim_offset:
                # Trimmed while this reader lagged: its next request is refused as trimmed.
                self._finish()
                break
            # From memory the answer comes within the call; from a disk later, and `_deliver` goes
            # on.
            self._reading = True
            self._live.engine.read(stream, self._position, self._deliver, self._reach_bytes)
        self._pumping = False

    def _may_send(self) -> bool:
        return self.exchange.writable and not (self._done or self._reading or self._starved)

    def _deliver(self, found: ReadOutcome) -> None:
        self._reading = False
        if self._done:
            return
        if isinstance(found, HeadraceError):
            self._finish()
            return
        self._take(found)
        if not self._pumping:
            self._pump()

    def _take(self, found: Chunk) -> None:
        chunk = self._whole_characters(found)
        if chunk is not None:
            self._reach_bytes = self._live.event_bytes_max
            self._send(chunk)
        elif found.up_to_date:
            self._held_at = found.end
        else:
            # Until a boundary is found, or CHARACTER_REACH_BYTES_MAX shows that it is not UTF-8.
            self._reach_bytes *= 2

    def _send(self, chunk: Chunk) -> None:
        if len(chunk.data) > EVENT_BYTES_MAX:
            self._begin_large(chunk)
            return
        self.exchange.send(self._live.frame(self.stream, chunk, self._cursor()))
        self._position = chunk.end
        self._complete = chunk.closed

    def _begin_large(self, chunk: Chunk) -> None:
        """What follows is sent in windows, as the client takes them."""
        unsent = self._live.unsent
        event = self._live.large_event(self.stream, chunk)
        if event is None:
            self._starved = True  # the position is all that is kept
            unsent.wait(self)
            return
        self._event, self._at = event, 0
        self._event_of = Chunk(chunk.start, chunk.end, b"", chunk.up_to_date, chunk.closed)
        self._position = chunk.end
        unsent.begin(self)

    def _send_window(self, event: SharedEvent) -> None:
        window = event.window(self._at)
        self.exchange.send(window)
        self._at += len(window.raw)
        self._live.unsent.taken(self, len(window.raw))
        if not event.is_over(self._at):
            return
        chunk = self._event_of
        assert chunk is not None, "an event is of a chunk"
        self._drop_event()
        self.exchange.send(Frame(control_event(chunk, self._cursor())))
        self._complete = chunk.closed or self._ending

    def _drop_event(self) -> None:
        event, self._event = self._event, None
        self._event_of = None
        if event is not None:
            event.release()
            self._live.unsent.end(self)

    def _whole_characters(self, chunk: Chunk) -> Chunk | None:
        """The chunk, cut back to a message that ends with a whole character; None is more.

        Only text can be cut, and only while more may come: a closed stream ends where it ends,
        and what goes on for very long without one clean boundary is not UTF-8 anyway.
        """
        state = self.stream.state
        if state.is_json or not state.is_text or chunk.closed:
            return chunk
        if not sse.ends_inside_character(chunk.data):
            return chunk
        data, size, count = chunk.data, len(chunk.data), len(chunk.lengths)
        for length in islice(reversed(chunk.lengths[1:]), BOUNDARIES_MAX):
            size, count = size - length, count - 1
            # Its last bytes tell. Cutting the data each time took minutes for a stream of halves.
            if not sse.ends_inside_character(data[max(0, size - 4) : size]):
                end = Position(chunk.start.messages + count, chunk.start.bytes + size)
                return Chunk(chunk.start, end, data[:size], False, False)
        return chunk if len(chunk.data) > CHARACTER_REACH_BYTES_MAX else None

    def _cursor(self) -> int:
        """Past what the client echoed at first, and never going back afterwards."""
        echoed, self._echoed = self._echoed, None
        self._last_cursor = max(self._last_cursor, self._live.cursor(echoed))
        return self._last_cursor

    def _finish(self) -> None:
        if not self._done:
            self._detach()
            self.exchange.end()

    def _detach(self) -> None:
        if self._done:
            return
        self._done = True
        if self._live.rotations is not None:
            self._live.rotations.remove(self)
        self._drop_event()
        self._live.unsent.leave(self)
        self._live.sse_count -= 1
        self._live.engine.detach_reader(self.stream, self)
