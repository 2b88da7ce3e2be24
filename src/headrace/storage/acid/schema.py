"""What acid writes into LMDB: keys, values and their checksums.

    streams    id                        what the stream was created as
    heads      id                        its head: tail, trim offset, closure, Stream-Seq
    data       id, first byte            messages that were committed together
    producers  id, digest of producer    its epoch and last sequence number
    receipts   id, digest, slot          the tail after one of its last appends
    documents  digest of the name        a document that is not a stream, with its name
    commits    "count"                   how many transactions there have been
               "last id"                 the highest id that a stream or blob of this shard had
    removed    id                        a removed stream whose data is not fully deleted yet

Integers in keys are big-endian, so that LMDB's order is the stream's. Every value begins with the
CRC32C of its key and the rest of it: a value that is damaged, or stored under the wrong key, is
found out when it is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

import google_crc32c
import msgspec

from headrace.errors import StoredBytesDamaged
from headrace.protocol.offsets import Position
from headrace.protocol.producers import ProducerState
from headrace.storage.base import Range

STATE_DATABASES: Final = (b"streams", b"heads")  # one value each
CONTENT_DATABASES: Final = (b"data", b"producers", b"receipts")  # any number of values
DATABASES: Final = (
    *STATE_DATABASES, *CONTENT_DATABASES, b"documents", b"commits", b"removed",
)  # fmt: skip
LATER_DATABASES: Final = (b"commits", b"removed")  # those an old directory may be without
_ID = struct.Struct(">Q")
_DATA_KEY = struct.Struct(">QQ")
_CRC = struct.Struct("<I")
_CHUNK = struct.Struct("<QI")
_RECEIPT = struct.Struct("<QQQQ")
DIGEST_BYTES: Final = 16


class ProducerRecord(msgspec.Struct, array_like=True):
    id: bytes
    epoch: int
    seq: int


_pack = msgspec.msgpack.encode


def existing_databases(transaction: Any) -> list[bytes]:
    """Nothing was counted in a directory that no server has opened since there are counts."""
    return [n for n in DATABASES if n not in LATER_DATABASES or transaction.get(n) is not None]


def stream_key(stream_id: int) -> bytes:
    return _ID.pack(stream_id)


def data_key(stream_id: int, first_byte: int) -> bytes:
    return _DATA_KEY.pack(stream_id, first_byte)


def producer_key(stream_id: int, producer_id: bytes) -> bytes:
    """LMDB keys are at most 511 bytes and a Producer-Id may be longer, so its digest is the key."""
    return _ID.pack(stream_id) + blake2b(producer_id, digest_size=DIGEST_BYTES).digest()


def document_key(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=DIGEST_BYTES).digest()


def encode_document(name: str, value: bytes) -> bytes:
    return _pack((name, value))


def decode_document(payload: bytes) -> tuple[str, bytes]:
    return msgspec.msgpack.decode(payload, type=tuple[str, bytes])


def with_checksum(key: bytes, payload: bytes) -> bytes:
    return _CRC.pack(google_crc32c.extend(google_crc32c.value(key), payload)) + payload


def checked_payload(database: str, key: bytes, value: bytes) -> bytes:
    payload = bytes(value[_CRC.size :])
    if len(value) < _CRC.size or _CRC.unpack_from(value)[0] != google_crc32c.extend(
        google_crc32c.value(key), payload
    ):
        raise StoredBytesDamaged(database, key.hex())
    return payload


def encode_producer(producer_id: bytes, epoch: int, seq: int) -> bytes:
    return _pack(ProducerRecord(producer_id, epoch, seq))


def decode_producer(payload: bytes) -> ProducerRecord:
    return msgspec.msgpack.decode(payload, type=ProducerRecord)


def encode_receipt(epoch: int, seq: int, tail: Position) -> bytes:
    return _RECEIPT.pack(epoch, seq, *tail)


def restore_receipts(state: ProducerState, payloads: list[bytes]) -> None:
    """The receipts of the current epoch, without gaps, newest last."""
    by_seq = {}
    for epoch, seq, messages, bytes_ in map(_RECEIPT.unpack, payloads):
        if epoch == state.epoch:
            by_seq[seq] = Position(messages, bytes_)
    seq = state.seq
    while seq in by_seq:
        state.receipts.insert(0, by_seq[seq])
        seq -= 1


def chunk_end(key: bytes, value: bytes) -> int:
    """The byte behind a chunk."""
    _, count = _CHUNK.unpack_from(value, _CRC.size)
    data_bytes = len(value) - _CRC.size - _CHUNK.size - 4 * count
    return int(_DATA_KEY.unpack(key)[1] + data_bytes)


def encode_chunk(start: Position, lengths: list[int], data: bytes) -> bytes:
    head = _CHUNK.pack(start.messages, len(lengths))
    return head + struct.pack(f"<{len(lengths)}I", *lengths) + data


def _chunks(
    cursor: Any, stream_id: int, first_byte: int
) -> Iterator[tuple[Position, tuple[int, ...], bytes]]:
    """Chunks from the one that holds `first_byte` on."""
    wanted = data_key(stream_id, first_byte)
    found = cursor.set_range(wanted)
    if not found or bytes(cursor.key()) != wanted:
        found = cursor.prev() if found else cursor.last()
    while found:
        key = bytes(cursor.key())
        owner, start_bytes = _DATA_KEY.unpack(key)
        if owner != stream_id:
            return
        payload = checked_payload("data", key, cursor.value())
        start_messages, count = _CHUNK.unpack_from(payload)
        lengths = struct.unpack_from(f"<{count}I", payload, _CHUNK.size)
        yield Position(start_messages, start_bytes), lengths, payload[_CHUNK.size + 4 * count :]
        found = cursor.next()


def read_range(
    cursor: Any, stream_id: int, start: Position, limit: Position, bytes_max: int
) -> Range | None:
    """Whole messages from `start`, which is before `limit`; None where it is not a boundary."""
    found: list[int] = []
    parts: list[bytes] = []
    position = start
    for first, lengths, data in _chunks(cursor, stream_id, start.bytes):
        skip = position.messages - first.messages
        offset = position.bytes - first.bytes
        if not 0 <= skip <= len(lengths) or sum(lengths[:skip]) != offset:
            if found or not 0 <= offset <= len(data):
                raise StoredBytesDamaged("data", data_key(stream_id, position.bytes).hex())
            return None
        size = 0
        for length in lengths[skip:]:
            end_bytes = position.bytes + length
            too_much = end_bytes - start.bytes > bytes_max and bool(found)
            if too_much or position.messages >= limit.messages:
                parts.append(data[offset : offset + size])
                return Range(position, b"".join(parts), found)
            found.append(length)
            size += length
            position = Position(position.messages + 1, end_bytes)
        parts.append(data[offset : offset + size])
        if position.messages >= limit.messages:
            break
    if not found:
        raise StoredBytesDamaged("data", data_key(stream_id, position.bytes).hex())
    return Range(position, b"".join(parts), found)


def contiguous_end(cursor: Any, stream_id: int, first: Position) -> Position:
    """How far a stream's chunks follow one another from `first` on."""
    position = first
    for start, lengths, data in _chunks(cursor, stream_id, first.bytes):
        if start > position or sum(lengths) != len(data):
            break
        position = Position(start.messages + len(lengths), start.bytes + len(data))
    return max(position, first)
