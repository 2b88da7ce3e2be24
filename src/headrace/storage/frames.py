"""What stands in the journal: frames, and the batches they are synced in.

A frame is one change, whole: bytes, boundaries, producer, sequence and closure together. A batch
is what one sync made durable. Its header says which use of the segment it belongs to, which
frames it holds, and up to where the journal was known to be durable when it was written: so a
damaged batch below that mark is damage, and one above it may be a write that never finished.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import google_crc32c
import msgspec

from headrace.errors import StoredBytesDamaged
from headrace.protocol.offsets import Position
from headrace.protocol.producers import ProducerHeaders
from headrace.protocol.stream import Appended, StreamState
from headrace.storage.base import Adopted, Change, Created, Documents, Trimmed
from headrace.storage.records import (
    HeadRecord,
    ProducerRecords,
    StreamRecord,
    head_of,
    producer_records,
    restore_head,
    restore_producers,
    stream_record,
)

MAGIC: Final = b"HRB1"
ALIGNMENT: Final = 8
_HEADER = struct.Struct("<4sIIIQQQI4x")  # magic, crc, body crc, body bytes, generation, lsns, count
_CHECKED_FROM: Final = 8  # the header's checksum covers what follows it
HEADER_BYTES: Final = _HEADER.size
_LENGTH = struct.Struct("<I")


def seal(payload: bytes) -> bytes:
    """A small file that is replaced whole: its checksum, and what it says."""
    return _LENGTH.pack(google_crc32c.value(payload)) + payload


def unseal(name: str, sealed: bytes) -> bytes:
    payload = sealed[_LENGTH.size :]
    if sealed[: _LENGTH.size] != _LENGTH.pack(google_crc32c.value(payload)):
        raise StoredBytesDamaged(name, "0")
    return payload


class AppendFrame(msgspec.Struct, array_like=True, tag=1, gc=False):
    stream_id: int
    now_ms: int
    start: tuple[int, int]
    lengths: tuple[int, ...]
    data: bytes
    closes: bool
    stream_seq: bytes | None
    producer: tuple[bytes, int, int] | None

    def change(self) -> Appended:
        start = Position(*self.start)
        end = Position(start.messages + len(self.lengths), start.bytes + len(self.data))
        producer = None if self.producer is None else ProducerHeaders(*self.producer)
        return Appended(start, end, self.data, self.lengths, self.closes, self.stream_seq, producer)


class CreateFrame(msgspec.Struct, array_like=True, tag=2):
    stream_id: int
    stream: StreamRecord
    initial: AppendFrame


class RemoveFrame(msgspec.Struct, array_like=True, tag=3):
    stream_id: int
    whole: bool


class TrimFrame(msgspec.Struct, array_like=True, tag=4):
    stream_id: int
    floor: tuple[int, int]


class DocumentsFrame(msgspec.Struct, array_like=True, tag=5):
    documents: dict[str, bytes | None]


class AdoptFrame(msgspec.Struct, array_like=True, tag=9):
    stream_id: int
    head: HeadRecord
    producers: ProducerRecords

    def restore(self, state: StreamState) -> None:
        restore_head(state, self.head)
        restore_producers(state, self.producers)


Frame = AppendFrame | CreateFrame | RemoveFrame | TrimFrame | DocumentsFrame | AdoptFrame
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def frame_of(state: StreamState, change: Change) -> Frame:
    """`state` is already what the change made of it."""
    if isinstance(change, Appended):
        return _append_frame(state.id, change, state.written_ms)
    if isinstance(change, Created):
        initial = _append_frame(state.id, change.initial, state.written_ms)
        return CreateFrame(state.id, stream_record(state), initial)
    if isinstance(change, Trimmed):
        return TrimFrame(state.id, change.floor)
    if isinstance(change, Adopted):
        return AdoptFrame(state.id, head_of(state), producer_records(state))
    return RemoveFrame(state.id, change.whole)


def documents_frame(documents: Documents) -> DocumentsFrame:
    return DocumentsFrame(dict(documents))


def _append_frame(stream_id: int, change: Appended, now_ms: int) -> AppendFrame:
    return AppendFrame(
        stream_id,
        now_ms,
        change.start,
        change.lengths,
        change.data,
        change.closes,
        change.stream_seq,
        change.producer,
    )


class BatchHeader(NamedTuple):
    body_crc: int
    body_bytes: int
    generation: int
    first_lsn: int
    durable_lsn: int
    frames: int

    @property
    def size(self) -> int:
        """Bytes the batch takes in its segment."""
        return -(-(HEADER_BYTES + self.body_bytes) // ALIGNMENT) * ALIGNMENT

    @property
    def next_lsn(self) -> int:
        return self.first_lsn + self.frames


def encode_batch(
    frames: list[Frame], generation: int, first_lsn: int, durable_lsn: int
) -> tuple[BatchHeader, bytes]:
    """A batch as it stands in the journal, padded to its alignment."""
    parts: list[bytes] = []
    for frame in frames:
        encoded = _encode(frame)
        parts += (_LENGTH.pack(len(encoded)), encoded)
    body = b"".join(parts)
    header = BatchHeader(
        google_crc32c.value(body), len(body), generation, first_lsn, durable_lsn, len(frames)
    )
    head = _HEADER.pack(MAGIC, 0, *header)
    crc = google_crc32c.value(head[_CHECKED_FROM:])
    padding = bytes(header.size - HEADER_BYTES - len(body))
    return header, _HEADER.pack(MAGIC, crc, *header) + body + padding


def decode_header(head: bytes) -> BatchHeader | None:
    """None where no batch begins."""
    if len(head) < HEADER_BYTES or not head.startswith(MAGIC):
        return None
    _, crc, *fields = _HEADER.unpack(head)
    if crc != google_crc32c.value(head[_CHECKED_FROM:]):
        return None
    return BatchHeader(*fields)


def decode_body(header: BatchHeader, body: bytes) -> list[Frame] | None:
    """None where the body is not what was written."""
    if len(body) != header.body_bytes or google_crc32c.value(body) != header.body_crc:
        return None
    frames: list[Frame] = []
    offset = 0
    while offset < len(body):
        (length,) = _LENGTH.unpack_from(body, offset)
        offset += _LENGTH.size
        frames.append(_decode(body[offset : offset + length]))
        offset += length
    return frames
