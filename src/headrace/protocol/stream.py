"""One stream: its state, and what each command means against it.

`decide_*` are pure: they look at state and command and return a change, an answer that changes
nothing, or a refusal. `apply_append` is the only place that moves a stream's tail.

An append is decided in this order; the first reason found is the answer:

    the stream is closed     a repeat of an accepted append: 204, closed. A close without a body and
                             without a producer: 204. Anything else: 409 with the final offset
    the content type         differs in its media type: 409
    the producer             a repeat: 204; a gap, an older epoch: 409, 403 (`producers`)
    Stream-Seq               not greater than the last one, as bytes: 409. After the producer, since
                             a repeat carries the Stream-Seq of its original
    the body                 not JSON, an empty array, too many messages: 400, 413
    the size of the stream   over the limit with it: 413

A refused append changes nothing: neither the producer's seq nor Stream-Seq is consumed.

A change holds the outcome (`Appended.end`, the stored form of the data), not the command. So the
same changes lead to the same state when they are replayed under other limits or by another version.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headrace.errors import (
    ConfigurationMismatch,
    ContentTypeMismatch,
    InvalidJson,
    Refused,
    SequenceRegression,
    StreamClosed,
    StreamFull,
)
from headrace.limits import Limits
from headrace.protocol import producers
from headrace.protocol.expiry import FOREVER, Lifetime, Moment
from headrace.protocol.headers import DEFAULT_CONTENT_TYPE, JSON, media_type
from headrace.protocol.json_mode import Logged, log_form
from headrace.protocol.offsets import START, Position, advance
from headrace.protocol.producers import ProducerHeaders, ProducerState, Repeat
from headrace.protocol.requests import Append, Create, ForkRequest


@dataclass(frozen=True, slots=True)
class ForkOrigin:
    """The source of a fork: the request, and the point it resolved to.

    `source_id` and not a name: the source may be deleted, and another stream get its name.
    """

    request: ForkRequest
    source_id: int
    point: Position


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """What a stream was created as; it never changes."""

    content_type: str
    lifetime: Lifetime = FOREVER
    fork: ForkOrigin | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """Replaces everything before `offset`; its bytes are in a separate blob."""

    offset: Position
    content_type: str
    size_bytes: int
    digest: bytes
    blob_id: int


class StreamState:
    """Everything about one stream but its bytes."""

    __slots__ = (
        "closed",
        "config",
        "created_at_ms",
        "deleted",
        "id",
        "is_json",
        "media_type",
        "name",
        "producers",
        "retained_from",
        "snapshot",
        "stream_seq",
        "tail",
        "touched_ms",
        "trim_offset",
        "written_ms",
    )

    def __init__(self, id: int, name: str, config: StreamConfig, now_ms: int) -> None:
        self.id = id
        self.name = name
        self.config = config
        self.media_type = media_type(config.content_type)
        self.is_json = self.media_type == JSON
        self.tail: Position = config.fork.point if config.fork else START
        # Reads begin at the trim offset or behind it; bytes before `retained_from` are no longer
        # stored. Forks may need more than clients may read: retained_from <= trim_offset.
        self.trim_offset: Position = START
        self.retained_from: Position = START
        self.snapshot: Snapshot | None = None
        self.closed = False
        self.stream_seq: bytes | None = None
        self.producers: dict[bytes, ProducerState] | None = None
        self.created_at_ms = now_ms
        self.touched_ms = now_ms
        self.written_ms = now_ms
        self.deleted = False

    @property
    def is_text(self) -> bool:
        """Whether SSE carries this stream as text rather than base64."""
        return self.is_json or self.media_type.startswith("text/")

    def is_expired(self, now: Moment) -> bool:
        lifetime = self.config.lifetime
        return lifetime is not FOREVER and lifetime.is_over(self.touched_ms, now)


class Appended:
    """A change: `data` goes after `start`, in messages of these `lengths`; one frame, one fact."""

    __slots__ = ("closes", "data", "end", "lengths", "producer", "start", "stream_seq")

    def __init__(
        self,
        start: Position,
        end: Position,
        data: bytes,
        lengths: tuple[int, ...],
        closes: bool,
        stream_seq: bytes | None,
        producer: ProducerHeaders | None,
    ) -> None:
        self.start = start
        self.end = end
        self.data = data
        self.lengths = lengths
        self.closes = closes
        self.stream_seq = stream_seq
        self.producer = producer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Appended) and self._facts() == other._facts()

    def __repr__(self) -> str:
        return f"Appended{self._facts()}"

    def _facts(self) -> tuple[object, ...]:
        place = (self.start, self.end, self.data, self.lengths)
        return (*place, self.closes, self.stream_seq, self.producer)


@dataclass(frozen=True, slots=True)
class Repeated:
    """The same producer append again: nothing changes."""

    repeat: Repeat
    closed: bool


@dataclass(frozen=True, slots=True)
class AlreadyClosed:
    """A close of a closed stream: nothing changes."""

    tail: Position


def decide_append(
    state: StreamState, command: Append, limits: Limits
) -> Appended | Repeated | AlreadyClosed | Refused:
    if state.closed:
        return _decide_on_closed(state, command, limits)
    # Equal text is the common case, and spares the parsing of both media types.
    content_type = command.content_type
    if (
        content_type is not None
        and content_type != state.config.content_type
        and media_type(content_type) != state.media_type
    ):
        return ContentTypeMismatch(state.config.content_type, content_type)
    producer = command.producer
    if producer is not None:
        verdict = producers.judge(state.producers, producer, limits.producers_max)
        if verdict is not None:
            return Repeated(verdict, False) if isinstance(verdict, Repeat) else verdict
    stream_seq = command.stream_seq
    if stream_seq is not None and state.stream_seq is not None and stream_seq <= state.stream_seq:
        return _regression(state.stream_seq, stream_seq)
    if state.is_json and command.body:
        return _append_json(state, command, limits)
    # Bytes and text are one message per append, stored as sent. An append that only closes has
    # none.
    body = command.body
    return _append(state, command, body, (len(body),) if body else (), limits)


def _regression(last: bytes, received: bytes) -> SequenceRegression:
    return SequenceRegression(last.decode("latin-1"), received.decode("latin-1"))


def _append_json(state: StreamState, command: Append, limits: Limits) -> Appended | Refused:
    # A large body was validated in slices before it came here (`http.handlers.large_json`).
    logged = command.logged or json_log_form(command.body, limits)
    if isinstance(logged, Refused):
        return logged
    data, lengths = logged
    if not lengths:
        return InvalidJson("The array is empty: there is no message to append.")
    return _append(state, command, data, lengths, limits)


def json_log_form(body: bytes, limits: Limits) -> Logged | Refused:
    """The messages of a JSON body, validated and split in one go."""
    try:
        return log_form(body, limits.json_body_bytes_max, limits.append_messages_max)
    except Refused as refusal:
        return refusal


def _append(
    state: StreamState, command: Append, data: bytes, lengths: tuple[int, ...], limits: Limits
) -> Appended | Refused:
    start = state.tail
    end = advance(start, len(lengths), len(data))
    # What clients can still read counts, not what forks may keep stored below the trim offset.
    if end.bytes - state.trim_offset.bytes > limits.stream_bytes_max:
        return StreamFull(state.name, limits.stream_bytes_max)
    return Appended(start, end, data, lengths, command.close, command.stream_seq, command.producer)


def _decide_on_closed(
    state: StreamState, command: Append, limits: Limits
) -> Repeated | AlreadyClosed | Refused:
    """A closed stream answers repeats of what it accepted, and refuses everything else."""
    producer = command.producer
    if producer is not None:
        verdict = producers.judge(state.producers, producer, limits.producers_max)
        # Also of an append that came before the one that closed: its client lost the answer, not
        # the data.
        if isinstance(verdict, Repeat):
            return Repeated(verdict, True)
    elif command.close and not command.body:
        return AlreadyClosed(state.tail)  # closing is idempotent
    return StreamClosed(state.name, state.tail.token())


def apply_append(state: StreamState, change: Appended, now_ms: int, limits: Limits) -> None:
    # Nothing here may fail halfway: memory and the record in storage must agree.
    end = change.end
    state.tail = end
    state.written_ms = now_ms
    if change.stream_seq is not None:
        state.stream_seq = change.stream_seq
    if change.producer is not None:
        if state.producers is None:
            state.producers = {}
        producers.accept(state.producers, change.producer, end, limits.producer_receipts_max)
    if change.closes:
        state.closed = True


def decide_existing(state: StreamState, command: Create) -> Refused | None:
    """Whether a PUT on an existing stream asks for the stream that is there (None: it does)."""
    differs = _difference(state, command)
    return None if differs is None else ConfigurationMismatch(state.name, differs)


def _difference(state: StreamState, command: Create) -> str | None:
    config = state.config
    # What a PUT leaves out is not compared for a fork: it inherits it from its source.
    if not _same_fork(config.fork, command.fork):
        return "it is a fork of another point" if config.fork else "it is not a fork"
    is_fork = config.fork is not None
    if command.content_type is not None or not is_fork:
        wanted = command.content_type or DEFAULT_CONTENT_TYPE
        if media_type(wanted) != state.media_type:
            return f"its content type is {config.content_type}"
    if config.lifetime != command.lifetime and not (is_fork and command.lifetime == FOREVER):
        return "its TTL or expiry differs"
    if state.closed != command.closed:
        return "it is closed" if state.closed else "it is open"
    return None


def _same_fork(origin: ForkOrigin | None, wanted: ForkRequest | None) -> bool:
    if origin is None or wanted is None:
        return origin is None and wanted is None
    if origin.request.source != wanted.source or origin.request.sub_offset != wanted.sub_offset:
        return False
    # Without an offset a repeated PUT means the fork that exists, wherever the tail is now.
    return wanted.offset is None or wanted.offset in (origin.request.offset, origin.point)
