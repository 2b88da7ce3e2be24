"""The engine: one order of events for all streams of a server.

Commands are decided against state by `protocol`, made durable by `storage`, and become visible
to readers when storage says so. Every method runs to completion in the caller's stack frame;
whatever must wait for storage is answered through the reply callback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace.clock import Clock
from headrace.engine.expiry_queue import ExpiryQueue
from headrace.engine.reads import ReadOutcome, Reads, start_position
from headrace.engine.registry import Registry
from headrace.engine.tails import Stream, TailListener
from headrace.errors import (
    CommitFailed,
    ContentTypeMismatch,
    HeadraceError,
    InvalidRequest,
    MemoryFull,
    MethodNotAllowed,
    NameTaken,
    Overloaded,
    Refused,
    SourceDeleted,
    StreamDeleted,
    StreamNotFound,
)
from headrace.limits import Limits
from headrace.protocol.expiry import FOREVER
from headrace.protocol.forks import fork_anchor, messages_needed, resolve_point
from headrace.protocol.headers import DEFAULT_CONTENT_TYPE, media_type
from headrace.protocol.json_mode import split_messages
from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.offsets import BEGINNING, START, Position
from headrace.protocol.requests import Append, Create, ForkRequest
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
from headrace.storage.base import (
    Change,
    Created,
    Documents,
    Entry,
    Removed,
    Storage,
    Trimmed,
    ignore,
)


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A PUT whose stream is there: as it was when the answer was decided."""

    state: StreamState
    tail: Position
    closed: bool
    created: bool


@dataclass(frozen=True, slots=True)
class Deleted:
    name: str


T = TypeVar("T")
AppendOutcome = Appended | Repeated | AlreadyClosed | HeadraceError
CreateOutcome = Confirmed | HeadraceError
DeleteOutcome = Deleted | HeadraceError
REGISTRY_METHODS = "GET, HEAD, OPTIONS"
ID_BITS_PER_MS = 10  # a thousand creations a millisecond


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
        self._reads = Reads(storage)
        # Ids are never used twice, by a later run neither: each run begins past what any run
        # before it can have reached.
        self._next_id = clock.now_ms() << ID_BITS_PER_MS
        self._expiring = ExpiryQueue()
        # Names whose last stream is gone, until that is durable.
        self._leaving: dict[str, Stream] = {}
        self._on_create: list[Callable[[Stream], None]] = []
        storage.start(self._committed, self._commit_failed)
        self._recover()
        self._documents = storage.take_documents()
        self._registry = Registry(
            self._registry_stream(), self.streams, storage, clock, self.limits
        )
        self._registry.correct()

    def _recover(self) -> None:
        by_id: dict[int, Stream] = {}
        now_ms = self.clock.now_ms()
        for found in self._storage.recover():
            state = found.state
            fork = state.config.fork
            source = by_id[fork.source_id] if fork is not None else None
            stream = by_id[state.id] = Stream(state, found.log, source)
            if source is not None:
                source.forks += 1
            stream.born = True
            stream.visible_closed = state.closed
            # What was read while nothing was written down: every window starts again.
            state.touched_ms = now_ms
            for producer in (state.producers or {}).values():
                del producer.receipts[: -self.limits.producer_receipts_max]
            superseded = self.streams.get(state.name)
            if superseded is not None:
                self._supersede(superseded)
            self.streams[state.name] = stream
            if state.name != REGISTRY_NAME:
                self.stored_bytes += found.log.stored_bytes
            if not state.deleted:
                self._expiring.add(stream)
            self._next_id = max(self._next_id, state.id + 1)

    def _supersede(self, stream: Stream) -> None:
        """A younger stream has the name, so this one's deletion was under way: carry it out."""
        stream.state.deleted = True
        self.stored_bytes -= stream.log.stored_bytes
        whole = not stream.forks
        self._storage.commit(stream.log, Removed(stream.state, whole=whole), None)
        if whole and stream.source is not None:
            stream.source.forks -= 1

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
            self._remove(stream, ignore)
            return self.find(name)
        return stream

    def settle(
        self,
        name: str,
        done: Callable[[], None],
        failed: Callable[[HeadraceError], None] = ignore,
    ) -> None:
        """Call `done` once whatever is known of `name` is durable: that it is, or is not, there.

        `failed` is called instead where that will never be known.
        """
        leaving, stream = self._leaving.get(name), self.streams.get(name)
        settle = self._storage.settle
        if leaving is not None and stream is not None:
            settle(leaving.log, lambda: settle(stream.log, done, failed), failed)
        elif leaving is not None or stream is not None:
            settle((leaving or self.streams[name]).log, done, failed)
        else:
            done()

    def touch(self, stream: Stream) -> None:
        """A read or write happened: a sliding TTL starts again."""
        if stream.state.config.lifetime is not FOREVER:
            stream.state.touched_ms = self.clock.now_ms()

    @property
    def write_refusal(self) -> HeadraceError | None:
        """Why nothing can be written at present, if so."""
        return self._storage.refusal

    def on_stream_created(self, callback: Callable[[Stream], None]) -> None:
        """Call `callback` with each new stream, before its first bytes become visible."""
        self._on_create.append(callback)

    # -- documents -------------------------------------------------------------------------

    def take_documents(self, prefix: str) -> dict[str, bytes]:
        """The documents that were kept under `prefix` before this run, by what follows it."""
        names = [name for name in self._documents if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._documents.pop(name) for name in names}

    def keep(self, documents: Documents) -> None:
        """Make changes to documents durable: all of them, or none."""
        self._storage.keep(documents)

    def settle_documents(self, done: Callable[[], None]) -> None:
        """Call `done` once every document handed in so far is durable."""
        self._storage.settle_documents(done)

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
            # A refusal or a repeat says what the stream is: it must be that for certain.
            self._storage.settle(stream.log, lambda: reply(outcome), reply)
            return
        stored_bytes = self.stored_bytes + len(outcome.data)
        if stored_bytes > self._memory_bytes_max:
            reply(MemoryFull(self._memory_bytes_max))
            return
        if self._storage.refusal is not None:
            reply(self._storage.refusal)
            return
        self.stored_bytes = stored_bytes
        apply_append(state, outcome, self.clock.now_ms(), limits)
        self._storage.commit(stream.log, outcome, (stream, outcome, reply))

    def _committed(self, entries: Sequence[Entry]) -> None:
        for stream, change, reply in entries:
            if type(change) is Appended:
                stream.visible = change.end
                if change.closes:
                    stream.visible_closed = True
                reply(change)
                if stream.readers or stream.watchers:
                    for listener in stream.listeners():
                        listener.on_advance(stream)
            else:
                self._existence_committed(stream, change, reply)

    def _existence_committed(
        self, stream: Stream, change: Created | Removed | Trimmed, reply: Callable[[Change], None]
    ) -> None:
        name = stream.state.name
        if isinstance(change, Trimmed):
            stream.state.floor = change.floor
            return
        if isinstance(change, Created):
            stream.born = True
            stream.visible = change.initial.end
            stream.visible_closed = change.initial.closes
            reply(change)
            for listener in stream.listeners():
                listener.on_advance(stream)
            return
        if self._leaving.get(name) is stream:
            del self._leaving[name]
        reply(change)
        for listener in stream.listeners():
            listener.on_gone(stream)

    def _commit_failed(self, entries: Sequence[Entry]) -> None:
        for _, _, reply in entries:
            reply(CommitFailed())

    def create(self, name: str, command: Create, reply: Callable[[CreateOutcome], None]) -> None:
        try:
            existing = self._confirm_existing(name, command)
            if existing is not None:
                state = existing.state
                outcome: CreateOutcome = Confirmed(state, state.tail, state.closed, created=False)
            elif command.fork is None:
                config = StreamConfig(
                    command.content_type or DEFAULT_CONTENT_TYPE, command.lifetime
                )
                self._create(name, command, config, None, reply)
                return
            else:
                self._create_fork(name, command, command.fork, reply)
                return
        except HeadraceError as refusal:
            outcome = refusal
        if command.fork is not None:
            # What is said of a fork may rest on its source: that it is gone, or of another type.
            source = command.fork.source
            self.settle(source, lambda: self.settle(name, lambda: reply(outcome), reply), reply)
            return
        self.settle(name, lambda: reply(outcome), reply)

    def _confirm_existing(self, name: str, command: Create) -> Stream | None:
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
        return stream

    def _create(
        self,
        name: str,
        command: Create,
        config: StreamConfig,
        source: Stream | None,
        reply: Callable[[CreateOutcome], None],
    ) -> None:
        if len(self.streams) > self.bounds.streams_max:
            raise Overloaded("streams", self.bounds.streams_max)
        if self._storage.refusal is not None:
            raise self._storage.refusal
        state = StreamState(self._next_id, name, config, self.clock.now_ms())
        initial = self._decide_initial(state, command)
        size = len(initial.data)
        if self.stored_bytes + size > self._memory_bytes_max:
            raise MemoryFull(self._memory_bytes_max)
        self._next_id += 1
        log = self._storage.new_log(state, source.log if source else None)
        stream = self.streams[name] = Stream(state, log, source)
        self.stored_bytes += size
        if source is not None:
            source.forks += 1
        apply_append(state, initial, state.created_at_ms, self.limits)
        self._expiring.add(stream)
        for callback in self._on_create:
            callback(stream)
        change = Created(state, initial)
        created = Confirmed(state, initial.end, initial.closes, created=True)
        # Announced first: a commit may answer at once, and a delete may be what is asked next.
        self._registry.created(state)
        self._storage.commit(log, change, (stream, change, _translate(created, reply)))

    def _create_fork(
        self,
        name: str,
        command: Create,
        request: ForkRequest,
        reply: Callable[[CreateOutcome], None],
    ) -> None:
        source = self._find_source(request.source)
        origin = source.state
        content_type = command.content_type or origin.config.content_type
        if media_type(content_type) != origin.media_type:
            raise ContentTypeMismatch(origin.config.content_type, content_type)
        anchor = fork_anchor(origin, request)
        if isinstance(anchor, Refused):
            raise anchor
        count = min(messages_needed(origin, request), origin.tail.messages - anchor.messages)

        def resolved(following: list[int] | HeadraceError | None) -> None:
            if isinstance(following, HeadraceError):
                reply(following)
                return
            if source.state.deleted or name in self.streams:
                # The wait for the source's boundaries let something else in: decide again.
                self.create(name, command, reply)
                return
            point = resolve_point(origin, anchor, request.sub_offset, following)
            try:
                if isinstance(point, Refused):
                    raise point
                config = StreamConfig(
                    content_type,
                    origin.config.lifetime.inherit(command.lifetime),
                    ForkOrigin(request, origin.id, point),
                )
                self._create(name, command, config, source, reply)
            except HeadraceError as error:
                refusal = error
                self.settle(origin.name, lambda: reply(refusal), reply)

        self._reads.lengths(source, anchor, count, resolved)

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
        if start == BEGINNING and stream is self._registry.stream:
            return stream.state.floor
        return start_position(stream, start)

    def read(
        self,
        stream: Stream,
        start: Position,
        reply: Callable[[ReadOutcome], None],
        bytes_max: int | None = None,
    ) -> None:
        """What follows `start`, up to one chunk; at once if it is in memory."""
        size_max = self.limits.read_chunk_bytes if bytes_max is None else bytes_max
        self._reads.chunk(stream, start, size_max, reply)

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
            self._remove(self.find(name), _translate(Deleted(name), reply))
        except HeadraceError as refusal:
            error = refusal
            self.settle(name, lambda: reply(error), reply)

    def sweep(self, streams_max: int = 1000) -> int:
        """Remove streams whose time is over, at most `streams_max` at once; how many went."""
        over = self._expiring.pop_over(self.clock.now_ms(), streams_max)
        for stream in over:
            self._remove(stream, ignore)
        self._storage.tick()
        return len(over)

    def _remove(self, stream: Stream, reply: Callable[[Change], None]) -> None:
        """Gone for writers now and for readers when durable; its bytes go with its last fork."""
        state = stream.state
        state.deleted = True
        self._expiring.discard(stream)
        change = Removed(state, whole=not stream.forks)
        followers: list[Stream] = []
        if change.whole:
            self._leaving[state.name] = stream
            followers = self._release(stream)
        # A commit may answer at once, and what is asked next must find everything done. The
        # stream goes before the sources it held, so that a fork never outlives its source.
        self._registry.deleted(state.name)
        self._storage.commit(stream.log, change, (stream, change, reply))
        for source in followers:
            # Its name is free from now on, and whoever is told so must be told for certain.
            self._leaving[source.state.name] = source
            gone = Removed(source.state, whole=True)
            self._storage.commit(source.log, gone, (source, gone, ignore))

    def _release(self, stream: Stream) -> list[Stream]:
        """Take a stream out; deleted sources whose last fork it was follow it."""
        del self.streams[stream.state.name]
        self.stored_bytes -= stream.log.stored_bytes
        source = stream.source
        if source is None:
            return []
        source.forks -= 1
        if source.forks or not source.state.deleted:
            return []
        return [source, *self._release(source)]

    def _registry_stream(self) -> Stream:
        stream = self.streams.get(REGISTRY_NAME)
        if stream is None:
            config = StreamConfig("application/json")
            state = StreamState(self._next_id, REGISTRY_NAME, config, self.clock.now_ms())
            self._next_id += 1
            stream = Stream(state, self._storage.new_log(state, None))
            stream.born = True
            self.streams[REGISTRY_NAME] = stream
            nothing = Appended(START, START, b"", (), False, None, None)
            self._storage.commit(stream.log, Created(state, nothing), None)
        return stream

    def close(self) -> None:
        self._storage.close()


def _translate(success: T, reply: Callable[[T | HeadraceError], None]) -> Callable[[object], None]:
    """A reply to a commit: what the client is told, unless it failed."""
    return lambda outcome: reply(outcome if isinstance(outcome, HeadraceError) else success)
