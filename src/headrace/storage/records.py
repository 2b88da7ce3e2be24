"""Streams as records: what every durable mode writes down about one, and reads back."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from headrace.protocol.expiry import FOREVER, Lifetime
from headrace.protocol.offsets import START, Position
from headrace.protocol.producers import ProducerState
from headrace.protocol.requests import ForkRequest
from headrace.protocol.stream import ForkOrigin, Snapshot, StreamConfig, StreamState

_pack = msgspec.msgpack.encode


ProducerRecords = list[tuple[bytes, int, int, list[tuple[int, int]]]]
"""Each producer's id, epoch, last sequence number and receipts."""


class ForkRecord(msgspec.Struct, array_like=True):
    source: str
    offset: tuple[int, int] | None
    sub_offset: int
    source_id: int
    point: tuple[int, int]


class StreamRecord(msgspec.Struct, array_like=True):
    name: str
    content_type: str
    created_at_ms: int
    ttl_secs: int | None
    expires_at_ms: int | None
    fork: ForkRecord | None


class SnapshotRecord(msgspec.Struct, array_like=True, frozen=True):
    offset: tuple[int, int]
    content_type: str
    size_bytes: int
    digest: bytes
    blob_id: int


class HeadRecord(msgspec.Struct, array_like=True, frozen=True):
    tail: tuple[int, int]
    trim_offset: tuple[int, int]
    closed: bool
    deleted: bool
    stream_seq: bytes | None
    written_ms: int
    retained_from: tuple[int, int] = (0, 0)
    snapshot: SnapshotRecord | None = None


def stream_record(state: StreamState) -> StreamRecord:
    config = state.config
    return StreamRecord(
        state.name,
        config.content_type,
        state.created_at_ms,
        config.lifetime.ttl_secs,
        config.lifetime.expires_at_ms,
        None if config.fork is None else _fork_record(config.fork),
    )


def encode_stream(state: StreamState) -> bytes:
    return _pack(stream_record(state))


def _fork_record(fork: ForkOrigin) -> ForkRecord:
    request = fork.request
    return ForkRecord(
        request.source, request.offset, request.sub_offset, fork.source_id, fork.point
    )


def head_of(state: StreamState) -> HeadRecord:
    return HeadRecord(
        state.tail,
        state.trim_offset,
        state.closed,
        state.deleted,
        state.stream_seq,
        state.written_ms,
        state.retained_from,
        snapshot_record(state.snapshot),
    )


def head_after_appends(
    head: HeadRecord,
    tail: tuple[int, int],
    written_ms: int,
    stream_seq: bytes | None,
    *,
    closes: bool,
) -> HeadRecord:
    """What appends without producers make of a head: the same as of the stream it is of."""
    return HeadRecord(
        tail,
        head.trim_offset,
        closes or head.closed,
        head.deleted,
        head.stream_seq if stream_seq is None else stream_seq,
        written_ms,
        head.retained_from,
        head.snapshot,
    )


def snapshot_record(snapshot: Snapshot | None) -> SnapshotRecord | None:
    if snapshot is None:
        return None
    return SnapshotRecord(
        snapshot.offset,
        snapshot.content_type,
        snapshot.size_bytes,
        snapshot.digest,
        snapshot.blob_id,
    )


def snapshot_of(record: SnapshotRecord | None) -> Snapshot | None:
    if record is None:
        return None
    return Snapshot(
        Position(*record.offset),
        record.content_type,
        record.size_bytes,
        record.digest,
        record.blob_id,
    )


def decode_stream(stream: bytes) -> StreamRecord:
    return msgspec.msgpack.decode(stream, type=StreamRecord)


def decode_state(stream_id: int, stream: bytes, head: bytes) -> StreamState:
    return restore_state(
        stream_id,
        decode_stream(stream),
        msgspec.msgpack.decode(head, type=HeadRecord),
    )


def new_state(stream_id: int, record: StreamRecord) -> StreamState:
    """A stream as it was when it was created, before its first content."""
    lifetime = Lifetime(record.ttl_secs, record.expires_at_ms)
    fork = None if record.fork is None else _decode_fork(record.fork)
    if lifetime == FOREVER and fork is None:
        config = _plain_config(record.content_type)
    else:
        config = StreamConfig(
            record.content_type, FOREVER if lifetime == FOREVER else lifetime, fork
        )
    return StreamState(stream_id, record.name, config, record.created_at_ms)


@lru_cache(maxsize=1024)
def _plain_config(content_type: str) -> StreamConfig:
    """Most streams have one of a few types and nothing else: they share it."""
    return StreamConfig(content_type)


def _position(pair: tuple[int, int]) -> Position:
    """Most streams are kept from their start: they share that, too."""
    return START if pair == START else Position(*pair)


def restore_state(stream_id: int, record: StreamRecord, head: HeadRecord) -> StreamState:
    state = new_state(stream_id, record)
    restore_head(state, head)
    return state


def restore_head(state: StreamState, head: HeadRecord) -> None:
    state.tail = Position(*head.tail)
    state.trim_offset = _position(head.trim_offset)
    state.closed = head.closed
    state.deleted = head.deleted
    state.stream_seq = head.stream_seq
    state.retained_from = _position(head.retained_from)
    state.snapshot = snapshot_of(head.snapshot)
    state.touched_ms = state.written_ms = head.written_ms


def producer_records(state: StreamState) -> ProducerRecords:
    return [
        (name, producer.epoch, producer.seq, [(*receipt,) for receipt in producer.receipts])
        for name, producer in (state.producers or {}).items()
    ]


def restore_producers(state: StreamState, records: ProducerRecords) -> None:
    if records:
        state.producers = {
            name: ProducerState(epoch, seq, [Position(*receipt) for receipt in receipts])
            for name, epoch, seq, receipts in records
        }


def _decode_fork(record: ForkRecord) -> ForkOrigin:
    offset = None if record.offset is None else Position(*record.offset)
    request = ForkRequest(record.source, offset, record.sub_offset)
    return ForkOrigin(request, record.source_id, Position(*record.point))


def encode_head(head: HeadRecord) -> bytes:
    return _pack(head)
