"""The engine: one order of events for all streams of a server.

Commands are decided against state by `protocol`, made durable by `storage`, and become visible
to readers when storage says so. Every method runs to completion in the caller's stack frame;
whatever must wait for storage is answered through the reply callback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from headrace.clock import Clock
from headrace.engine.expiry_queue import ExpiryQueue
from headrace.engine.registry import Registry
from headrace.engine.tails import Stream, TailListener
from headrace.errors import (
    ContentTypeMismatch,
    HeadraceError,
    InvalidOffset,
    InvalidRequest,
    MemoryFull,
    MethodNotAllowed,
    NameTaken,
    OffsetTrimmed,
    Overloaded,
    Refused,
    SourceDeleted,
    StreamDeleted,
    StreamNotFound,
)
from headrace.limits import Limits
from headrace.protocol.expiry import FOREVER
from headrace.protocol.forks import resolve_point
from headrace.protocol.headers import DEFAULT_CONTENT_TYPE, media_type
from headrace.protocol.json_mode import split_messages
from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.offsets import BEGINNING, Position
from headrace.protocol.requests import Append, Create
from headrace.protocol.stream import (
    AlreadyClosed,
    Appended,
    ForkOrigin,
    Repeated,
    StreamConfig,
    StreamState,
    apply_append,
    decide_append,
    decide_existing,
)
from headrace.storage.base import Entry, Storage


@dataclass(frozen=True, slots=True)
class Created:
    state: StreamState


@dataclass(frozen=True, slots=True)
class Existing:
    """A PUT that asked for the stream that is there."""

    state: StreamState


@dataclass(frozen=True, slots=True)
class Deleted:
    name: str


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """A range of a stream as one answer carries it."""

    start: Position
    end: Position
    data: bytes
    up_to_date: bool
    closed: bool


AppendOutcome = Appended | Repeated | AlreadyClosed | HeadraceError
CreateOutcome = Created | Existing | HeadraceError
DeleteOutcome = Deleted | HeadraceError
REGISTRY_METHODS = "GET, HEAD, OPTIONS"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What all streams together may use."""

    memory_bytes_max: int = 100 * 1024 * 1024
    streams_max: int = 1_000_000
    readers_per_stream_max: int = 100_000


class Engine:
    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.clock = clock
        self.limits = limits or Limits()
        self.bounds = bounds or Bounds()
        self.streams: dict[str, Stream] = {}
        self.stored_bytes = 0
        self._memory_bytes_max = self.bounds.memory_bytes_max
        self.reader_count = 0
        self._storage = storage
        self._next_id = 1
        self._expiring = ExpiryQueue()
        self._on_create: list[Callable[[Stream], None]] = []
        storage.start(self._committed)
        self._registry = Registry(self._new_registry_stream())

    # -- finding ---------------------------------------------------------------------------

    def find(self, name: str) -> Stream:
        """The stream called `name`; raises StreamNotFound or StreamDeleted."""
        stream = self.streams.get(name)
        if stream is None:
            raise StreamNotFound(name)
        state = stream.state
        if state.deleted:
            raise StreamDeleted(name)
        if state.config.lifetime is not FOREVER and stream.is_expired(self.clock.now_ms()):
            self._remove(stream)
            return self.find(name)
        return stream

    def touch(self, stream: Stream) -> None:
        """A read or write happened: a sliding TTL starts again."""
        if stream.state.config.lifetime is not FOREVER:
            stream.state.touched_ms = self.clock.now_ms()

    def on_stream_created(self, callback: Callable[[Stream], None]) -> None:
        """Call `callback` with each new stream, before its first bytes become visible."""
        self._on_create.append(callback)

    # -- writing ---------------------------------------------------------------------------

    def append(
        self, stream: Stream, command: Append, reply: Callable[[AppendOutcome], None]
    ) -> None:
        if stream.read_only:
            reply(MethodNotAllowed(REGISTRY_METHODS))
            return
        state = stream.state
        limits = self.limits
        outcome = decide_append(state, command, limits)
        if type(outcome) is not Appended:
            if not isinstance(outcome, HeadraceError):
                self.touch(stream)
            reply(outcome)
            return
        stored_bytes = self.stored_bytes + len(outcome.data)
        if stored_bytes > self._memory_bytes_max:
            reply(MemoryFull(self._memory_bytes_max))
            return
        self.stored_bytes = stored_bytes
        apply_append(state, outcome, self.clock.now_ms(), limits)
        self._storage.commit(stream.log, outcome, (stream, outcome, reply))

    def _committed(self, entries: Sequence[Entry]) -> None:
        for stream, change, reply in entries:
            stream.visible = change.end
            if change.closes:
                stream.visible_closed = True
            reply(change)
            if stream.readers or stream.watchers:
                for listener in stream.listeners():
                    listener.on_advance(stream)

    def create(self, name: str, command: Create, reply: Callable[[CreateOutcome], None]) -> None:
        try:
            existing = self._confirm_existing(name, command)
            if existing is None:
                self._create(name, command, reply)
                return
        except HeadraceError as refusal:
            reply(refusal)
            return
        reply(existing)

    def _confirm_existing(self, name: str, command: Create) -> Existing | None:
        if name == REGISTRY_NAME:
            raise MethodNotAllowed(REGISTRY_METHODS)
        try:
            stream = self.find(name)
        except StreamNotFound:
            return None
        except StreamDeleted:
            raise NameTaken(name) from None
        refusal = decide_existing(stream.state, command)
        if refusal is not None:
            raise refusal
        return Existing(stream.state)

    def _create(self, name: str, command: Create, reply: Callable[[CreateOutcome], None]) -> None:
        if len(self.streams) > self.bounds.streams_max:
            raise Overloaded("streams", self.bounds.streams_max)
        stream = self._new_stream(name, command)
        state = stream.state
        initial = self._decide_initial(state, command)
        size = len(initial.data)
        if self.stored_bytes + size > self._memory_bytes_max:
            raise MemoryFull(self._memory_bytes_max)
        self._next_id += 1
        self.streams[name] = stream
        self.stored_bytes += size
        if stream.source is not None:
            stream.source.forks += 1
        apply_append(state, initial, state.created_at_ms, self.limits)
        self._expiring.add(stream)
        for callback in self._on_create:
            callback(stream)
        self._storage.commit(
            stream.log, initial, (stream, initial, lambda _: reply(Created(state)))
        )
        self._announce(self._registry.created(state))

    def _new_stream(self, name: str, command: Create) -> Stream:
        now_ms = self.clock.now_ms()
        if command.fork is None:
            config = StreamConfig(command.content_type or DEFAULT_CONTENT_TYPE, command.lifetime)
            state = StreamState(self._next_id, name, config, now_ms)
            return Stream(state, self._storage.new_log())
        source = self._find_source(command.fork.source)
        origin = source.state
        content_type = command.content_type or origin.config.content_type
        if media_type(content_type) != origin.media_type:
            raise ContentTypeMismatch(origin.config.content_type, content_type)
        point = resolve_point(origin, source.log, command.fork)
        if isinstance(point, Refused):
            raise point
        config = StreamConfig(
            content_type,
            origin.config.lifetime.inherit(command.lifetime),
            ForkOrigin(command.fork, origin.id, point),
        )
        state = StreamState(self._next_id, name, config, now_ms)
        return Stream(state, source.log.branch(point), source)

    def _find_source(self, name: str) -> Stream:
        if name == REGISTRY_NAME:
            raise InvalidRequest(f"{REGISTRY_NAME} cannot be forked.")
        try:
            return self.find(name)
        except StreamDeleted:
            raise SourceDeleted(name) from None

    def _decide_initial(self, state: StreamState, command: Create) -> Appended:
        """The first change of a stream: its initial content and closure, perhaps neither."""
        body = command.body
        if state.is_json and body and not split_messages(body, self.limits.json_body_bytes_max):
            body = b""
        outcome = decide_append(state, Append(body, close=command.closed), self.limits)
        if isinstance(outcome, HeadraceError):
            raise outcome
        assert isinstance(outcome, Appended), "a new stream is open and knows no producer"
        return outcome

    # -- reading ---------------------------------------------------------------------------

    def start_position(self, stream: Stream, start: Position | str) -> Position:
        """Where a read begins; raises InvalidOffset or OffsetTrimmed."""
        state = stream.state
        if isinstance(start, str):
            if start != BEGINNING:
                return stream.visible
            start = state.floor if stream is self._registry.stream else Position(0, 0)
        if start.bytes < state.floor.bytes:
            raise OffsetTrimmed(state.floor.token())
        if start > stream.visible:
            raise InvalidOffset(f"The offset {start} is past the tail, {stream.visible}.")
        if start != stream.visible and not stream.log.is_boundary(start):
            raise InvalidOffset(f"The offset {start} is not one this stream returned.")
        return start

    def read(self, stream: Stream, start: Position) -> Chunk:
        """What follows `start`, up to one chunk."""
        visible = stream.visible
        if start == visible:
            return Chunk(start, start, b"", True, stream.visible_closed)
        end = stream.log.chunk_end(start, visible, self.limits.read_chunk_bytes)
        data = stream.log.read(start.bytes, end.bytes)
        up_to_date = end == visible
        return Chunk(start, end, data, up_to_date, up_to_date and stream.visible_closed)

    def attach_reader(self, stream: Stream, reader: TailListener) -> None:
        limit = self.bounds.readers_per_stream_max
        if stream.readers is not None and len(stream.readers) >= limit:
            raise Overloaded("live readers on this stream", limit)
        stream.attach_reader(reader)
        self.reader_count += 1

    def detach_reader(self, stream: Stream, reader: TailListener) -> None:
        stream.detach_reader(reader, self.clock.now_ms())
        self.reader_count -= 1

    # -- ending ----------------------------------------------------------------------------

    def delete(self, name: str, reply: Callable[[DeleteOutcome], None]) -> None:
        try:
            if name == REGISTRY_NAME:
                raise MethodNotAllowed(REGISTRY_METHODS)
            self._remove(self.find(name))
        except HeadraceError as refusal:
            reply(refusal)
            return
        reply(Deleted(name))

    def sweep(self, streams_max: int = 1000) -> int:
        """Remove streams whose time is over, at most `streams_max` at once; how many went."""
        over = self._expiring.pop_over(self.clock.now_ms(), streams_max)
        for stream in over:
            self._remove(stream)
        return len(over)

    def _remove(self, stream: Stream) -> None:
        """Gone for clients now; its bytes go with the last fork that needs them."""
        stream.state.deleted = True
        self._announce(self._registry.deleted(stream.state.name))
        for listener in stream.listeners():
            listener.on_gone(stream)
        self._release(stream)

    def _release(self, stream: Stream | None) -> None:
        while stream is not None and stream.state.deleted and not stream.forks:
            del self.streams[stream.state.name]
            self.stored_bytes -= stream.log.stored_bytes
            stream = stream.source
            if stream is not None:
                stream.forks -= 1

    # -- the registry ----------------------------------------------------------------------

    def _new_registry_stream(self) -> Stream:
        config = StreamConfig("application/json")
        state = StreamState(self._next_id, REGISTRY_NAME, config, self.clock.now_ms())
        self._next_id += 1
        stream = self.streams[REGISTRY_NAME] = Stream(state, self._storage.new_log())
        stream.read_only = True
        return stream

    def _announce(self, change: Appended) -> None:
        self._append_to_registry(change)
        if self._registry.is_due:
            self._compact_registry()

    def _append_to_registry(self, change: Appended) -> None:
        stream = self._registry.stream
        apply_append(stream.state, change, self.clock.now_ms(), self.limits)
        self.stored_bytes += len(change.data)
        self._storage.commit(stream.log, change, (stream, change, _ignore))

    def _compact_registry(self) -> None:
        stream = self._registry.stream
        floor = stream.state.tail
        self._append_to_registry(self._registry.restated(self._announced_states()))
        stream.state.floor = floor
        self.stored_bytes -= stream.log.trim(floor)

    def _announced_states(self) -> Iterator[StreamState]:
        for stream in self.streams.values():
            if stream is not self._registry.stream and not stream.state.deleted:
                yield stream.state

    def close(self) -> None:
        self._storage.close()


def _ignore(_: AppendOutcome) -> None:
    """Nobody waits for the registry's own appends."""
