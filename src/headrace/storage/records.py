"""Streams as records: what every durable mode writes down about one, and reads back."""

from __future__ import annotations

import msgspec

from headrace.protocol.expiry import FOREVER, Lifetime
from headrace.protocol.offsets import Position
from headrace.protocol.requests import ForkRequest
from headrace.protocol.stream import ForkOrigin, StreamConfig, StreamState

_pack = msgspec.msgpack.encode


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


class HeadRecord(msgspec.Struct, array_like=True, frozen=True):
    tail: tuple[int, int]
    floor: tuple[int, int]
    closed: bool
    deleted: bool
    stream_seq: bytes | None


def encode_stream(state: StreamState) -> bytes:
    config = state.config
    return _pack(
        StreamRecord(
            state.name,
            config.content_type,
            state.created_at_ms,
            config.lifetime.ttl_secs,
            config.lifetime.expires_at_ms,
            None if config.fork is None else _fork_record(config.fork),
        )
    )


def _fork_record(fork: ForkOrigin) -> ForkRecord:
    request = fork.request
    return ForkRecord(
        request.source, request.offset, request.sub_offset, fork.source_id, fork.point
    )


def head_of(state: StreamState) -> HeadRecord:
    return HeadRecord(state.tail, state.floor, state.closed, state.deleted, state.stream_seq)


def decode_state(stream_id: int, stream: bytes, head: bytes) -> StreamState:
    record = msgspec.msgpack.decode(stream, type=StreamRecord)
    where = msgspec.msgpack.decode(head, type=HeadRecord)
    lifetime = Lifetime(record.ttl_secs, record.expires_at_ms)
    config = StreamConfig(
        record.content_type,
        FOREVER if lifetime == FOREVER else lifetime,
        None if record.fork is None else _decode_fork(record.fork),
    )
    state = StreamState(stream_id, record.name, config, record.created_at_ms)
    state.tail = Position(*where.tail)
    state.floor = Position(*where.floor)
    state.closed = where.closed
    state.deleted = where.deleted
    state.stream_seq = where.stream_seq
    return state


def _decode_fork(record: ForkRecord) -> ForkOrigin:
    offset = None if record.offset is None else Position(*record.offset)
    request = ForkRequest(record.source, offset, record.sub_offset)
    return ForkOrigin(request, record.source_id, Position(*record.point))


def encode_head(head: HeadRecord) -> bytes:
    return _pack(head)
