"""The frame of an append, made without an object for it: nearly all frames are of appends.

Apart from `frames`, because this module is compiled and that one cannot be: mypyc ignores the
keywords of a class, by which msgspec knows one frame from another. The bytes are those of
`frames.AppendFrame`, whose fields come in the same order.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.protocol.offsets import Position
from headrace.protocol.producers import ProducerHeaders
from headrace.protocol.stream import Appended, StreamState

APPEND_TAG: Final = 1
_LENGTH_BYTES: Final = 4
_encode: Final = msgspec.msgpack.Encoder().encode

AppendFields = tuple[
    int, int, int, Position, tuple[int, ...], bytes, bool, bytes | None, ProducerHeaders | None
]


def append_fields(state: StreamState, change: Appended) -> AppendFields:
    """The tag, then the fields of an AppendFrame; `state` is what the change made of it."""
    return (
        APPEND_TAG,
        state.id,
        state.written_ms,
        change.start,
        change.lengths,
        change.data,
        change.closes,
        change.stream_seq,
        change.producer,
    )


def encode_append(state: StreamState, change: Appended) -> bytes:
    """Its encoding in a batch, after its length."""
    encoded: bytes = _encode(append_fields(state, change))
    return len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded
