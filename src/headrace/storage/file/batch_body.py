"""The frames in the body of a batch, once it is known to be sound."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from headrace.storage.file.frames import (
    DOCUMENTS_TAG,
    LENGTH,
    Frame,
    Owner,
    decode_frame,
    decode_owner,
)

_LENGTH_BYTES: Final = LENGTH.size
_KIND_AT: Final = _LENGTH_BYTES + 1  # behind the first byte of an array
_UINT_64: Final = 0xCF  # of msgpack
_ID = struct.Struct(">Q")
_COPIED_BYTES_MAX: Final = 4096


def frame_offsets(body: bytes) -> list[int]:
    """The offsets of its frames."""
    places: list[int] = []
    place, size = 0, len(body)
    while place < size:
        places.append(place)
        place += _LENGTH_BYTES + int(LENGTH.unpack_from(body, place)[0])
    return places


def decode_frames(body: bytes) -> Iterator[Frame]:
    for place in frame_offsets(body):
        yield frame_at(body, place)


def frame_at(body: bytes, place: int) -> Frame:
    frame: Frame = decode_frame(_record(body, place))
    return frame


def stream_id_at(body: bytes, place: int) -> int | None:
    """Whose frame it is, without decoding the rest of it; None for documents, which belong to no
    stream."""
    kind_at = place + _KIND_AT
    if body[kind_at] == DOCUMENTS_TAG:
        return None
    if body[kind_at + 1] == _UINT_64:  # as every id is that a server gives
        return int(_ID.unpack_from(body, kind_at + 2)[0])
    owner: Owner = decode_owner(_record(body, place))
    return owner.stream_id


def _record(body: bytes, place: int) -> bytes | memoryview:
    begin = place + _LENGTH_BYTES
    end = begin + int(LENGTH.unpack_from(body, place)[0])
    # A small copy costs less than a view.
    return body[begin:end] if end - begin < _COPIED_BYTES_MAX else memoryview(body)[begin:end]
