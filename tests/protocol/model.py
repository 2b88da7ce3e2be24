"""The protocol as plainly as it can be said: a stream is a list of messages.

The state machine runs every step against this and against the engine. Nothing here is shared
with the engine but the classes of its outcomes; offsets are taken as the engine returned them
and only compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.errors import (
    ConfigurationMismatch,
    ContentTypeMismatch,
    HeadraceError,
    InvalidRequest,
    NameTaken,
    ProducerFenced,
    ProducerGap,
    SequenceRegression,
    SourceDeleted,
    StreamClosed,
    StreamDeleted,
    StreamFull,
    StreamNotFound,
)
from headrace.protocol.offsets import Position
from headrace.protocol.producers import ProducerHeaders
from headrace.protocol.requests import Append, Create
from headrace.protocol.stream import AlreadyClosed, Appended, Repeated


class Created:
    """A PUT that makes a stream."""


class Existing:
    """A PUT that asks for the stream that is there."""


STREAM_BYTES_MAX = 400
RECEIPTS_MAX = 3


@dataclass
class Producer:
    epoch: int
    seq: int
    receipts: dict[int, Position] = field(default_factory=dict)

    def receipt(self, seq: int) -> Position | None:
        return self.receipts[seq] if seq > self.seq - RECEIPTS_MAX else None


@dataclass
class ModelStream:
    created_as: Create
    content_type: str
    ttl_secs: int | None
    touched_ms: int
    messages: list[bytes] = field(default_factory=list)  # as on the wire: JSON with its comma
    own_bytes: int = 0  # without what a fork inherited
    offsets: dict[Position, int] = field(default_factory=dict)  # to the bytes before each
    point: Position | None = None
    source: ModelStream | None = None
    forks: int = 0
    readers: int = 0
    closed: bool = False
    deleted: bool = False
    last_seq: bytes | None = None
    producers: dict[bytes, Producer] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        return b"".join(self.messages)

    @property
    def boundaries(self) -> list[int]:
        return [sum(map(len, self.messages[:n])) for n in range(len(self.messages) + 1)]

    def add(self, messages: list[bytes]) -> None:
        self.messages += messages
        self.own_bytes += sum(map(len, messages))

    def note_offset(self, offset: Position, count: int) -> None:
        """The engine says that `offset` stands after `count` bytes: so it sorts, as text too."""
        for other, before in self.offsets.items():
            assert (other < offset) == (before < count) == (other.token() < offset.token())
            assert (other == offset) == (before == count)
        self.offsets[offset] = count

    # -- appends ---------------------------------------------------------------------------

    def judge(self, command: Append, messages: list[bytes]) -> type:
        """What comes of an append of `messages`: the first rule that has something to say."""
        repeat = command.producer is not None and self.is_repeat(command.producer)
        if self.closed:
            if repeat:
                return Repeated
            only_closes = command.close and not command.body and command.producer is None
            return AlreadyClosed if only_closes else StreamClosed
        if command.body and command.content_type != self.content_type:
            return ContentTypeMismatch
        if command.producer is not None:
            refusal = Repeated if repeat else self.judge_producer(command.producer)
            if refusal is not None:
                return refusal
        seq = command.stream_seq
        if seq is not None and self.last_seq is not None and seq <= self.last_seq:
            return SequenceRegression
        if len(self.content) + sum(map(len, messages)) > STREAM_BYTES_MAX:
            return StreamFull
        return Appended

    def is_repeat(self, claim: ProducerHeaders) -> bool:
        known = self.producers.get(claim.id)
        return known is not None and claim.epoch == known.epoch and claim.seq <= known.seq

    def judge_producer(self, claim: ProducerHeaders) -> type | None:
        known = self.producers.get(claim.id)
        if known is None:
            return None if claim.seq == 0 else ProducerGap
        if claim.epoch < known.epoch:
            return ProducerFenced
        if claim.epoch > known.epoch:
            return None if claim.seq == 0 else InvalidRequest
        return None if claim.seq == known.seq + 1 else ProducerGap

    def append(self, command: Append, messages: list[bytes], end: Position) -> None:
        self.add(messages)
        self.note_offset(end, len(self.content))
        self.closed = self.closed or command.close
        self.last_seq = command.stream_seq or self.last_seq
        claim = command.producer
        if claim is not None:
            known = self.producers.get(claim.id)
            if known is None or known.epoch != claim.epoch:
                known = self.producers[claim.id] = Producer(claim.epoch, claim.seq)
            known.seq = claim.seq
            known.receipts[claim.seq] = end


class Model:
    """All streams of a server."""

    def __init__(self) -> None:
        self.streams: dict[str, ModelStream] = {}

    def find(self, name: str) -> ModelStream | type[HeadraceError]:
        stream = self.streams.get(name)
        if stream is None:
            return StreamNotFound
        return StreamDeleted if stream.deleted else stream

    def expire(self, now_ms: int) -> bool:
        """Remove what is over; whether a fork or the source of one was among it."""
        kin = False
        for stream in [*self.streams.values()]:
            over = stream.ttl_secs is not None and (
                now_ms >= stream.touched_ms + stream.ttl_secs * 1000
            )
            if over and not stream.readers and not stream.deleted:
                kin = kin or stream.source is not None or stream.forks > 0
                self.remove(stream)
        return kin

    def remove(self, stream: ModelStream) -> None:
        stream.deleted = True
        gone: ModelStream | None = stream
        while gone is not None and gone.deleted and not gone.forks:
            self.streams = {n: s for n, s in self.streams.items() if s is not gone}
            gone = gone.source
            if gone is not None:
                gone.forks -= 1

    # -- creation --------------------------------------------------------------------------

    def judge_create(self, name: str, command: Create, messages: list[bytes]) -> type:
        existing = self.find(name)
        if existing is StreamDeleted:
            return NameTaken
        if isinstance(existing, ModelStream):
            return Existing if self.is_same(existing, command) else ConfigurationMismatch
        inherited = b""
        if command.fork is not None:
            source = self.find(command.fork.source)
            if not isinstance(source, ModelStream):
                return SourceDeleted if source is StreamDeleted else StreamNotFound
            if command.content_type not in (None, source.content_type):
                return ContentTypeMismatch
            cut = self.fork_messages(source, command)
            if cut is None:
                return InvalidRequest
            inherited = b"".join(cut)
        size = len(inherited) + sum(map(len, messages))
        return StreamFull if size > STREAM_BYTES_MAX else Created

    def is_same(self, stream: ModelStream, command: Create) -> bool:
        """Whether a PUT asks for the stream that is there."""
        was, fork = stream.created_as.fork, command.fork
        if was is None or fork is None:
            if was is not fork:
                return False
        elif (was.source, was.sub_offset) != (fork.source, fork.sub_offset) or (
            fork.offset not in (None, was.offset, stream.point)
        ):
            return False
        default = stream.content_type if fork else "application/octet-stream"
        if (command.content_type or default) != stream.content_type:
            return False
        ttl_secs = command.lifetime.ttl_secs
        if ttl_secs != stream.ttl_secs and not (fork and ttl_secs is None):
            return False
        return stream.closed == command.closed

    def fork_messages(self, source: ModelStream, command: Create) -> list[bytes] | None:
        """What a fork inherits; None is a sub-offset that goes too far."""
        assert command.fork is not None
        offset, sub_offset = command.fork.offset, command.fork.sub_offset
        before = len(source.content) if offset is None else source.offsets[offset]
        whole = source.boundaries.index(before)
        inherited, rest = source.messages[:whole], source.messages[whole:]
        if source.content_type == "application/json":
            return inherited + rest[:sub_offset] if sub_offset <= len(rest) else None
        if not sub_offset:
            return inherited
        if not rest or sub_offset > len(rest[0]):
            return None
        return [*inherited, rest[0][:sub_offset]]

    def create(
        self, name: str, command: Create, messages: list[bytes], tail: Position, now_ms: int
    ) -> None:
        default = "application/octet-stream"
        stream = ModelStream(
            command, command.content_type or default, command.lifetime.ttl_secs, now_ms
        )
        if command.fork is not None:
            source = self.streams[command.fork.source]
            source.forks += 1
            stream.source = source
            stream.content_type = source.content_type
            stream.ttl_secs = source.ttl_secs if stream.ttl_secs is None else stream.ttl_secs
            stream.messages = self.fork_messages(source, command) or []
            inherited = len(stream.content)
            stream.offsets = {o: n for o, n in source.offsets.items() if n <= inherited}
        stream.add(messages)
        stream.note_offset(tail, len(stream.content))
        stream.closed = command.closed
        self.streams[name] = stream
