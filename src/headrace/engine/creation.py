"""Creating streams: confirmed if an equal one is there, forked from another, or begun empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.engine.append_replies import translate
from headrace.engine.stream_runtime import Stream
from headrace.errors import (
    BucketNotFound,
    ContentTypeMismatch,
    ForkTooDeep,
    HeadraceError,
    InvalidRequest,
    MethodNotAllowed,
    NameTaken,
    Overloaded,
    Refused,
    SourceDeleted,
    StreamDeleted,
    StreamNotFound,
)
from headrace.protocol import buckets
from headrace.protocol.forks import fork_anchor, messages_needed, resolve_point
from headrace.protocol.headers import DEFAULT_CONTENT_TYPE, media_type
from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.offsets import START, Position
from headrace.protocol.requests import Append, Create, ForkRequest
from headrace.protocol.stream import (
    Appended,
    ForkOrigin,
    StreamConfig,
    StreamState,
    apply_append,
    decide_append,
    decide_existing,
    json_log_form,
)
from headrace.storage.base import Change, Created, committing

if TYPE_CHECKING:
    from headrace.engine.engine import Engine
    from headrace.engine.feed import Feed


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A PUT whose stream is there: as it was when the answer was decided."""

    state: StreamState
    tail: Position
    closed: bool
    created: bool


CreateOutcome = Confirmed | HeadraceError
REGISTRY_METHODS = "GET, HEAD, OPTIONS"
_NOTHING = Appended(START, START, b"", (), False, None, None)


class Creation:
    """The part of the engine that adds streams to it.

    It has the whole engine, as `Removal` and `Buckets` do: to add or remove a stream changes what
    each of the others keeps (names, deadlines, bytes, feeds, the registry), and may ask for a
    creation or removal in turn. Collaborators that are only asked get what they need.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(self, name: str, command: Create, reply: Callable[[CreateOutcome], None]) -> None:
        engine = self._engine
        about = name
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
            if isinstance(refusal, BucketNotFound):
                about = buckets.bucket_name(refusal.bucket)
        if command.fork is not None:
            # What is said of a fork may rest on its source: that it is gone, or of another type.
            source = command.fork.source
            engine.when_durable(
                source, lambda: engine.when_durable(about, lambda: reply(outcome), reply), reply
            )
            return
        engine.when_durable(about, lambda: reply(outcome), reply)

    def create_internal(self, name: str) -> Stream:
        """An empty stream of the server's own; not announced before `begin`."""
        engine = self._engine
        if len(engine.streams) > engine.bounds.streams_max:
            raise Overloaded("streams", engine.bounds.streams_max)
        config = StreamConfig("application/json")
        state = StreamState(engine.new_id(), name, config, engine.clock.now_ms())
        stream = engine.streams[name] = Stream(state, engine.storage.new_log(state, None))
        stream.read_only = True
        return stream

    def begin(self, stream: Stream, reply: Callable[[Change], None]) -> None:
        change = Created(stream.state, _NOTHING)
        self._engine.storage.commit(stream.log, change, (stream, change, reply))

    def _confirm_existing(self, name: str, command: Create) -> Stream | None:
        if name == REGISTRY_NAME:
            raise MethodNotAllowed(REGISTRY_METHODS)
        try:
            stream = self._engine.find(name)
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
        engine = self._engine
        in_bucket = buckets.is_bucketed(name)
        feed = engine.buckets.find(buckets.ids_of(name)[0]).feed if in_bucket else None
        if len(engine.streams) > engine.bounds.streams_max:
            raise Overloaded("streams", engine.bounds.streams_max)
        engine.check_writable()
        state = StreamState(engine.new_id(), name, config, engine.clock.now_ms())
        initial = self._decide_initial(state, command)
        # The last that can refuse: what is counted here is released only with the stream.
        engine.stored.reserve(len(initial.data))
        with committing(engine.storage):
            self._begin_stream(state, initial, source, feed, reply)

    def _begin_stream(
        self,
        state: StreamState,
        initial: Appended,
        source: Stream | None,
        feed: Feed | None,
        reply: Callable[[CreateOutcome], None],
    ) -> None:
        """`feed` is that of its bucket, if it is in one."""
        engine = self._engine
        if source is not None:
            state.trim_offset, state.snapshot = source.state.trim_offset, source.state.snapshot
            # Counted before the source can lose it: the next snapshot of the source releases the
            # blob.
            engine.snapshots.inherit(state.snapshot)
        log = engine.storage.new_log(state, source.log if source else None)
        stream = engine.streams[state.name] = Stream(state, log, source)
        if source is not None:
            source.add_fork(stream)
            engine.reclaimer.update_sources(stream)
        apply_append(state, initial, engine.write_ms(feed), engine.limits)
        engine.touch(stream)
        engine.expiring.add(stream)
        change = Created(state, initial)
        created = Confirmed(state, initial.end, initial.closes, created=True)
        # Announced first: a commit may answer at once, and a delete may be what is asked next.
        if feed is not None:
            engine.buckets.expect(stream)
        else:
            engine.tell_created(stream)
        engine.storage.commit(log, change, (stream, change, translate(created, reply)))

    def _create_fork(
        self,
        name: str,
        command: Create,
        request: ForkRequest,
        reply: Callable[[CreateOutcome], None],
    ) -> None:
        source = self._find_source(request.source)
        depth_max = self._engine.limits.fork_depth_max
        if source.depth >= depth_max:
            raise ForkTooDeep(source.state.name, depth_max)
        origin = source.state
        content_type = command.content_type or origin.config.content_type
        if media_type(content_type) != origin.media_type:
            raise ContentTypeMismatch(origin.config.content_type, content_type)
        anchor = fork_anchor(origin, request)
        if isinstance(anchor, Refused):
            raise anchor
        count = min(messages_needed(origin, request), origin.tail.messages - anchor.messages)

        def resolved(reached: Position | HeadraceError | None) -> None:
            if isinstance(reached, HeadraceError):
                reply(reached)
                return
            moved = anchor.bytes < origin.trim_offset.bytes
            if source.state.deleted or moved or name in self._engine.streams:
                # The wait for the source's boundaries let something else in: decide again.
                self.create(name, command, reply)
                return
            point = resolve_point(origin, anchor, request.sub_offset, reached)
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
                self._engine.refuse_when_durable(origin.name, error, reply)

        self._engine.reads.seek(source, anchor, count, resolved)

    def _find_source(self, name: str) -> Stream:
        if name == REGISTRY_NAME:
            raise InvalidRequest(f"{REGISTRY_NAME} cannot be forked.")
        try:
            return self._engine.find(name)
        except StreamDeleted:
            raise SourceDeleted(name) from None

    def _decide_initial(self, state: StreamState, command: Create) -> Appended:
        """The first change of a stream: its initial content and closure, perhaps neither."""
        limits = self._engine.limits
        body, logged = command.body, command.logged
        if state.is_json and body:
            logged = logged or json_log_form(body, limits)
            if not isinstance(logged, Refused) and not logged.lengths:
                body = b""
        outcome = decide_append(state, Append(body, close=command.closed, logged=logged), limits)
        if isinstance(outcome, HeadraceError):
            raise outcome
        assert isinstance(outcome, Appended), "a new stream is open and knows no producer"
        return outcome
