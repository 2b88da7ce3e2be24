"""What a storage must hold after a crash: the changes handed to it, up to some point.

One journal means one order: what is recovered is the state after a first part of the changes, and
that part holds every change that an answer or a read rested on. The model applies changes by
rules of its own, so that a fault shared by storage and recovery is still a difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from headrace.limits import Limits
from headrace.protocol.offsets import START, Position
from headrace.protocol.stream import Appended, Snapshot, StreamState
from headrace.storage.base import (
    Change,
    Created,
    Documents,
    Log,
    Published,
    Reclaimed,
    Recovered,
    Removed,
    Trimmed,
)
from headrace.storage.blobs import Blobs

WINDOW_BYTES = 1 << 20


class Described(NamedTuple):
    """What a storage holds, in values that can be compared: streams by id, documents by name."""

    streams: dict[int, tuple[Any, ...]]
    documents: dict[str, bytes]


@dataclass
class Stream:
    """One stream as the changes describe it; `data` and `lengths` without those of its source."""

    record: tuple[Any, ...]
    base: Position
    source_id: int | None
    tail: Position
    data: bytearray = field(default_factory=bytearray)
    lengths: list[int] = field(default_factory=list)
    trim_offset: Position = START
    kept: Position = START
    snapshot: Snapshot | None = None
    closed: bool = False
    deleted: bool = False
    stream_seq: bytes | None = None
    producers: dict[bytes, tuple[int, int, list[Position]]] = field(default_factory=dict)

    def publish(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.trim_offset = snapshot.offset

    def append(self, change: Appended, receipts_max: int) -> None:
        assert change.start == self.tail, "a change begins where the one before it ended"
        self.data += change.data
        self.lengths += change.lengths
        self.tail = change.end
        self.closed = self.closed or change.closes
        if change.stream_seq is not None:
            self.stream_seq = change.stream_seq
        if change.producer is not None:
            name, epoch, seq = change.producer
            known_epoch, _, receipts = self.producers.get(name, (epoch, 0, []))
            kept = receipts if known_epoch == epoch else []
            self.producers[name] = (epoch, seq, [*kept, change.end][-receipts_max:])


class Model:
    def __init__(self, limits: Limits) -> None:
        self._receipts_max = limits.producer_receipts_max
        self.streams: dict[int, Stream] = {}
        self.documents: dict[str, bytes] = {}

    def copy(self) -> Model:
        return deepcopy(self)

    def keep(self, documents: Documents) -> None:
        kept = {**self.documents, **documents}
        self.documents = {name: value for name, value in kept.items() if value is not None}

    def apply(
        self, state: StreamState, change: Change, inherited: Snapshot | None, trimmed: Position
    ) -> None:
        """`inherited` is the snapshot that a new fork has of its source, `trimmed` where it begins.

        Not `state`'s, which has gone on since.
        """
        if isinstance(change, Created):
            fork = state.config.fork
            base = fork.point if fork else START
            source_id = fork.source_id if fork else None
            self.streams[state.id] = Stream(record_of(state), base, source_id, base)
            self.streams[state.id].trim_offset = trimmed
            if inherited is not None:
                self.streams[state.id].publish(inherited)
            change = change.initial
        if isinstance(change, Appended):
            self.streams[state.id].append(change, self._receipts_max)
        elif isinstance(change, Trimmed):
            self.streams[state.id].trim_offset = change.trim_offset
        elif isinstance(change, Published):
            self.streams[state.id].publish(change.snapshot)
        elif isinstance(change, Reclaimed):
            self.streams[state.id].kept = change.retained_from
        elif isinstance(change, Removed):
            self.streams[state.id].deleted = True
            if change.whole:
                del self.streams[state.id]

    def describe(self) -> Described:
        """Everything that counts."""
        streams = {stream_id: self._describe(one) for stream_id, one in self.streams.items()}
        return Described(streams, self.documents)

    def _describe(self, stream: Stream) -> tuple[Any, ...]:
        data, lengths = self._content(stream, stream.tail)
        start = stream.tail if stream.deleted else max(stream.trim_offset, stream.kept)
        return (
            stream.record,
            stream.tail,
            stream.trim_offset,
            stream.kept,
            stream.closed,
            stream.deleted,
            stream.stream_seq,
            stream.producers,
            stream.snapshot,
            None if stream.deleted or not stream.snapshot else stream.snapshot.digest,
            data[start.bytes :],
            lengths[start.messages :],
        )

    def _content(self, stream: Stream, end: Position) -> tuple[bytes, list[int]]:
        """From the beginning of the outermost source; a fork may cut a message of its source."""
        before = b""
        lengths: list[int] = []
        if stream.source_id is not None:
            before, lengths = self._content(self.streams[stream.source_id], stream.base)
        data = before + stream.data
        lengths = [*lengths, *stream.lengths][: end.messages]
        surplus = sum(lengths) - end.bytes
        if surplus > 0:
            lengths[-1] -= surplus
        return data[: end.bytes], lengths


def record_of(state: StreamState) -> tuple[Any, ...]:
    return state.name, state.config, state.created_at_ms


def blob_digest(state: StreamState, blobs: Blobs) -> bytes | None:
    """Of the bytes that are stored; a stream that is gone for clients needs none."""
    snapshot = state.snapshot
    if snapshot is None or state.deleted:
        return None
    blob = blobs.read(snapshot.blob_id, snapshot.size_bytes, 0, snapshot.size_bytes)
    return sha256(blob).digest()


def describe_recovered(
    found: Iterable[Recovered], documents: dict[str, bytes], blobs: Blobs, limits: Limits
) -> Described:
    """The same of a storage that has just recovered, its bytes read back."""
    described = {}
    for stream in found:
        state = stream.state
        # Of a deleted stream only what its forks need is kept, and they are read themselves.
        start = state.tail if state.deleted else max(state.trim_offset, state.retained_from)
        data, lengths = read_back(stream.log, start, state.tail)
        producers = {
            name: (p.epoch, p.seq, p.receipts[-limits.producer_receipts_max :])
            for name, p in (state.producers or {}).items()
        }
        described[state.id] = (
            record_of(state),
            state.tail,
            state.trim_offset,
            state.retained_from,
            state.closed,
            state.deleted,
            state.stream_seq,
            producers,
            state.snapshot,
            blob_digest(state, blobs),
            data,
            lengths,
        )
    return Described(described, documents)


def read_back(log: Log, start: Position, end: Position) -> tuple[bytes, list[int]]:
    data = b""
    lengths: list[int] = []
    while start != end:
        part = log.read(start, end, WINDOW_BYTES)
        if callable(part):
            part = part()
        assert part is not None, f"{start} is not a boundary"
        assert part.end > start, f"a read at {start} does not move on"
        data += part.data
        lengths += part.lengths
        start = part.end
    return data, lengths


def difference(wanted_all: Described, found_all: Described) -> str:
    """The first thing that differs, in words a person can start from."""
    if wanted_all.documents != found_all.documents:
        return f"documents should be {wanted_all.documents}, are {found_all.documents}"
    expected, found = wanted_all.streams, found_all.streams
    if expected.keys() != found.keys():
        names = {key: value[0][0] for key, value in (expected | found).items()}
        missing = sorted(names[key] for key in expected.keys() - found.keys())
        surplus = sorted(names[key] for key in found.keys() - expected.keys())
        return f"streams missing {missing}, present beyond them {surplus}"
    for stream_id, wanted in expected.items():
        for one, other in zip(wanted, found[stream_id], strict=True):
            if one != other:
                return f"{wanted[0][0]}: should be {one!r}, is {other!r}"
    return "nothing"
