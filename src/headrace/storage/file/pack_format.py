"""Packs: what checkpoints have for streams that are too small for files of their own.

    packs/NUMBER   parts of many streams, one behind the other, written by one checkpoint

A part is a run of one stream's messages: whose it is and where it begins, its lengths, its bytes.
The catalog says which parts a stream has, in order; they follow what is in its own files. When
they are many they are written again as one, and when they are much the stream gets files: so a
checkpoint over many streams opens one file, and not three for each. A pack goes when no part of
it counts, and is written again when most of it does not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import google_crc32c

from headrace.errors import StoredBytesDamaged
from headrace.protocol.offsets import Position
from headrace.storage.disk import Disk, DiskFile

DIRECTORY: Final = "packs"
PACK_BYTES_MAX = 64 * 1024 * 1024
_BUFFER_BYTES: Final = 1024 * 1024
_SYNCED_BYTES: Final = 4 * 1024 * 1024
_HEADER = struct.Struct("<I4xQQQII")  # crc, stream id, messages and bytes before, count, data bytes
_CRC = struct.Struct("<I4x")
_CHECKED_FROM: Final = _CRC.size
_LENGTH_BYTES: Final = 4
_START = struct.Struct("<QQ")
_PART = struct.Struct("<IQII")  # pack, place in it, messages, data bytes


class PackPart(NamedTuple):
    """The place of a run of one stream's messages in a pack."""

    start: Position
    pack: int
    place: int
    messages: int
    data_bytes: int

    @property
    def end(self) -> Position:
        return Position(self.start.messages + self.messages, self.start.bytes + self.data_bytes)

    @property
    def size(self) -> int:
        """Bytes it takes in its pack."""
        return _size(self.messages, self.data_bytes)


def _size(messages: int, data_bytes: int) -> int:
    return _HEADER.size + messages * _LENGTH_BYTES + data_bytes


Contents = tuple[tuple[int, ...], bytes]
"""The lengths of messages, and their bytes."""


def path(number: int) -> str:
    return f"{DIRECTORY}/{number:016d}"


def is_name(name: str) -> bool:
    """Whether a file of the directory is a pack, and not a foreign file."""
    return name.isdecimal() and path(int(name)) == f"{DIRECTORY}/{name}"


def decode_parts(encoded: bytes) -> list[PackPart]:
    """A stream's parts, from how the catalog has them."""
    parts: list[PackPart] = []
    if encoded:
        start = start_of(encoded)
        for fields in _PART.iter_unpack(memoryview(encoded)[_START.size :]):
            parts.append(PackPart(start, *fields))
            start = parts[-1].end
    return parts


def split_parts(encoded: bytes, kept_bytes: int) -> tuple[list[PackPart], bytes]:
    """The parts that end before a position, or there; and the rest, as the catalog has them."""
    if not encoded or kept_bytes <= start_of(encoded).bytes:
        return [], encoded
    gone = [part for part in decode_parts(encoded) if part.end.bytes <= kept_bytes]
    if not gone:
        return [], encoded
    rest = encoded[_START.size + len(gone) * _PART.size :]
    return gone, (_START.pack(*gone[-1].end) + rest if rest else b"")


def start_of(encoded: bytes) -> Position:
    """Where the first of a stream's parts begins."""
    return Position(*_START.unpack_from(encoded))


def count_parts(encoded: bytes) -> int:
    return max(0, len(encoded) - _START.size) // _PART.size


def read_part(file: DiskFile, stream_id: int, part: PackPart) -> Contents:
    """A part, once it is known to be what was written."""
    record = file.read(part.place, part.size)
    if len(record) == part.size:
        crc, *fields = _HEADER.unpack_from(record)
        # The catalog and the pack must agree. A checksum alone would accept the sound part of
        # another stream, if the catalog named a wrong place.
        is_it = fields == [stream_id, *part.start, part.messages, part.data_bytes]
        if is_it and google_crc32c.value(record[_CHECKED_FROM:]) == crc:
            lengths = struct.unpack_from(f"<{part.messages}I", record, _HEADER.size)
            return lengths, record[part.size - part.data_bytes :]
    raise StoredBytesDamaged(path(part.pack), str(part.place))


def owners(file: DiskFile) -> Iterator[int]:
    """The id of the stream each part belongs to, or belonged; not checked."""
    place = 0
    # Only to find candidates: `Checkpointer` asks the catalog which of them still have a part here,
    # and reads that with its checksum.
    while len(head := file.read(place, _HEADER.size)) == _HEADER.size:
        _, stream_id, _, _, messages, data_bytes = _HEADER.unpack(head)
        yield stream_id
        place += _size(messages, data_bytes)


class PackWriter:
    """Writes what one checkpoint packs; makes no file where that is nothing."""

    def __init__(self, disk: Disk, first: int, *, sync: bool) -> None:
        self._disk = disk
        self._sync = sync
        self.number = first
        self.sizes: dict[int, int] = {}
        """Of the packs that are written."""
        self._file: DiskFile | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._size = 0
        self._synced_bytes = 0

    def add(
        self, parts: bytes, stream_id: int, start: Position, lengths: Sequence[int], data: bytes
    ) -> bytes:
        """Add a part to those that a stream has; as the catalog has them, before and after."""
        if self._size >= PACK_BYTES_MAX:
            self._end()
        place, count, data_bytes = self._size, len(lengths), len(data)
        packed = struct.pack(f"<{count}I", *lengths)
        head = _HEADER.pack(0, stream_id, *start, count, data_bytes)[_CHECKED_FROM:]
        checked = b"".join((head, packed, data))
        self._waiting += (_CRC.pack(google_crc32c.value(checked)), checked)
        size = _CRC.size + len(checked)
        self._waiting_bytes += size
        self._size += size
        # One write for many streams: most parts are a few hundred bytes.
        if self._waiting_bytes >= _BUFFER_BYTES:
            self._flush()
        return (parts or _START.pack(*start)) + _PART.pack(self.number, place, count, data_bytes)

    def _flush(self) -> None:
        if self._file is None:
            self._file = self._disk.open(path(self.number), create=True)
            self._file.truncate(0)
        self._file.write(self._size - self._waiting_bytes, b"".join(self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._sync and self._size - self._synced_bytes >= _SYNCED_BYTES:
            # Little at a time: the journal waits for what the disk has to do before.
            self._file.sync()
            self._synced_bytes = self._size

    def _end(self) -> None:
        """Nothing more goes into this pack."""
        if not self._size:
            return
        self._flush()
        assert self._file is not None, "what is flushed is in a file"
        if self._sync:
            self._file.sync()
        self._file.close()
        self._file = None
        self.sizes[self.number] = self._size
        self.number += 1
        self._size = self._synced_bytes = 0

    def finish(self) -> None:
        """Return when everything added is durable."""
        self._end()
        if self._sync and self.sizes:
            self._disk.sync_directory(DIRECTORY)
