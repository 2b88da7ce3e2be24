"""The content of the journal: frames, and the batches they are synced in.

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

from headrace.protocol.offsets import Position
from headrace.protocol.producers import ProducerHeaders
from headrace.protocol.stream import Appended, StreamState
from headrace.storage.base import (
    Adopted,
    Change,
    Created,
    Documents,
    Published,
    Reclaimed,
    Trimmed,
)
from headrace.storage.file.append_frames import APPEND_TAG, append_fields, encode_append
from headrace.storage.records import (
    HeadRecord,
    ProducerRecords,
    SnapshotRecord,
    StreamRecord,
    head_of,
    producer_records,
    restore_head,
    restore_producers,
    snapshot_record,
    stream_record,
)

MAGIC: Final = b"HRB1"
ALIGNMENT: Final = 8
_HEADER = struct.Struct("<4sIIIQQQI4x")  # magic, crc, body crc, body bytes, generation, lsns, count
_CHECKED_FROM: Final = 8  # the header's checksum covers what follows it
HEADER_BYTES: Final = _HEADER.size
LENGTH = struct.Struct("<I")
# Larger data goes to the disk from where it is; copying less into a batch is cheaper than that.
ZERO_COPY_BYTES_MIN = 1 << 16
_BYTES = struct.Struct(">BI")
_BIN_32: Final = 0xC6  # of msgpack
_FIXED_ARRAY: Final = 0x90
DOCUMENTS_TAG: Final = 5


class AppendFrame(msgspec.Struct, array_like=True, tag=APPEND_TAG, gc=False):
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
    snapshot: SnapshotRecord | None = None  # what a fork inherits
    trim_offset: tuple[int, int] = (0, 0)  # that of its source, too


class RemoveFrame(msgspec.Struct, array_like=True, tag=3):
    stream_id: int
    whole: bool


class TrimFrame(msgspec.Struct, array_like=True, tag=4):
    stream_id: int
    trim_offset: tuple[int, int]


class DocumentsFrame(msgspec.Struct, array_like=True, tag=DOCUMENTS_TAG):
    documents: dict[str, bytes | None]


class PublishFrame(msgspec.Struct, array_like=True, tag=6):
    stream_id: int
    snapshot: SnapshotRecord


class ReclaimFrame(msgspec.Struct, array_like=True, tag=7):
    stream_id: int
    retained_from: tuple[int, int]


class BlobFrame(msgspec.Struct, array_like=True, tag=8):
    """The bytes of a snapshot; in exports only, a data directory has files for them."""

    blob_id: int
    data: bytes


class AdoptFrame(msgspec.Struct, array_like=True, tag=9):
    stream_id: int
    head: HeadRecord
    producers: ProducerRecords

    def restore(self, state: StreamState) -> None:
        restore_head(state, self.head)
        restore_producers(state, self.producers)


class Owner(msgspec.Struct, array_like=True, gc=False):
    """How every frame begins but one that holds documents."""

    kind: int
    stream_id: int


StreamFrame = AppendFrame | RemoveFrame | AdoptFrame | TrimFrame | PublishFrame | ReclaimFrame
"""A change of a stream that exists."""
Frame = StreamFrame | CreateFrame | DocumentsFrame | BlobFrame
EncodedFrame = bytes | tuple[bytes, bytes, bytes]
"""A frame as encoded in a batch; a large one in pieces, the second piece being its data."""
_encode = msgspec.msgpack.Encoder().encode
decode_frame = msgspec.msgpack.Decoder(Frame).decode
decode_owner = msgspec.msgpack.Decoder(Owner).decode


def frame_of(state: StreamState, change: Change) -> Frame:
    """`state` is already what the change made of it."""
    if isinstance(change, Appended):
        return _append_frame(state, change)
    if isinstance(change, Created):
        initial = _append_frame(state, change.initial)
        inherited = snapshot_record(state.snapshot), state.trim_offset
        return CreateFrame(state.id, stream_record(state), initial, *inherited)
    if isinstance(change, Trimmed):
        return TrimFrame(state.id, change.trim_offset)
    if isinstance(change, Published):
        record = snapshot_record(change.snapshot)
        assert record is not None, "a snapshot is published"
        return PublishFrame(state.id, record)
    if isinstance(change, Reclaimed):
        return ReclaimFrame(state.id, change.retained_from)
    if isinstance(change, Adopted):
        return AdoptFrame(state.id, head_of(state), producer_records(state))
    return RemoveFrame(state.id, change.whole)


def documents_frame(documents: Documents) -> DocumentsFrame:
    return DocumentsFrame(dict(documents))


def _append_frame(state: StreamState, change: Appended) -> AppendFrame:
    return AppendFrame(*append_fields(state, change)[1:])


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


def encode_change(state: StreamState, change: Change) -> EncodedFrame:
    """The frame of a change, encoded for a batch; `state` is the stream's state after it."""
    if isinstance(change, Appended) and len(change.data) < ZERO_COPY_BYTES_MIN:
        return encode_append(state, change)
    return encode_frame(frame_of(state, change))


def encode_frame(frame: Frame) -> EncodedFrame:
    """A frame as encoded in a batch, after its length."""
    if isinstance(frame, AppendFrame) and len(frame.data) >= ZERO_COPY_BYTES_MIN:
        return _encode_apart(frame)
    encoded = _encode(frame)
    return LENGTH.pack(len(encoded)) + encoded


def _encode_apart(frame: AppendFrame) -> tuple[bytes, bytes, bytes]:
    """The same bytes as the encoder's, without a copy of the data."""
    tag, fields = frame.__struct_config__.tag, frame.__struct_fields__
    before = _encode((tag, frame.stream_id, frame.now_ms, frame.start, frame.lengths))[1:]
    head = bytes([_FIXED_ARRAY + 1 + len(fields)])
    before = head + before + _BYTES.pack(_BIN_32, len(frame.data))
    after = _encode(frame.closes) + _encode(frame.stream_seq) + _encode(frame.producer)
    length = LENGTH.pack(len(before) + len(frame.data) + len(after))
    return length + before, frame.data, after


def encode_batch(
    frames: list[EncodedFrame], generation: int, first_lsn: int, durable_lsn: int
) -> tuple[BatchHeader, list[bytes]]:
    """A batch as encoded in the journal, in pieces, padded to its alignment."""
    pieces = _in_few_pieces(frames)
    crc = body_bytes = 0
    for piece in pieces:
        crc = google_crc32c.extend(crc, piece)
        body_bytes += len(piece)
    header = BatchHeader(crc, body_bytes, generation, first_lsn, durable_lsn, len(frames))
    head = _HEADER.pack(MAGIC, 0, *header)
    head = _HEADER.pack(MAGIC, google_crc32c.value(head[_CHECKED_FROM:]), *header)
    return header, [head, *pieces, bytes(header.size - HEADER_BYTES - body_bytes)]


def _in_few_pieces(frames: list[EncodedFrame]) -> list[bytes]:
    """Small ones joined, large data as separate pieces."""
    pieces: list[bytes] = []
    small: list[bytes] = []
    for frame in frames:
        if isinstance(frame, bytes):
            small.append(frame)
        else:
            before, data, after = frame
            pieces += (b"".join((*small, before)), data)
            small = [after]
    pieces.append(b"".join(small))
    return pieces


def decode_header(head: bytes) -> BatchHeader | None:
    """None where no batch begins."""
    if len(head) < HEADER_BYTES or not head.startswith(MAGIC):
        return None
    _, crc, *fields = _HEADER.unpack(head)
    if crc != google_crc32c.value(head[_CHECKED_FROM:]):
        return None
    return BatchHeader(*fields)


def body_matches(header: BatchHeader, body: bytes) -> bool:
    """Whether a body is what was written."""
    return len(body) == header.body_bytes and google_crc32c.value(body) == header.body_crc
