"""The frame of an append, made without an object for it: nearly all frames are of appends.

The bytes are those that `frames.encode_frame` makes of an AppendFrame.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.protocol.stream import Appended, StreamState
from headrace.storage.frames import (
    APART_BYTES_MIN,
    APPEND_TAG,
    LENGTH_BYTES,
    EncodedFrame,
    encode_frame,
    frame_of,
)

_encode: Final = msgspec.msgpack.Encoder().encode


def encode_append(state: StreamState, change: Appended) -> EncodedFrame:
    """`state` is already what the change made of it."""
    if len(change.data) >= APART_BYTES_MIN:
        return encode_frame(frame_of(state, change))
    encoded: bytes = _encode(
        (
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
    )
    return len(encoded).to_bytes(LENGTH_BYTES, "little") + encoded
