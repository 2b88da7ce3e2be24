"""The files of one stream: its bytes as readers receive them, and where its messages end.

    NAME.data      wire bytes; the byte at stream position p is at p minus the stream's base
    NAME.index     one entry of 48 bytes per block: where it begins, how long it is, its checksum
    NAME.lengths   four bytes per message, in order

A block is what one checkpoint added, cut at about 64 KiB, and always whole messages. Entries have
one size, so that a position is found by bisection with a handful of small reads, however long the
stream is. What follows the blocks is in packs, and a reader takes its parts for further blocks.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Final, NamedTuple

import google_crc32c

from headrace.errors import HeadraceError, StoredBytesDamaged
from headrace.protocol.offsets import Position
from headrace.storage.base import CheckResult, Range
from headrace.storage.disk import Disk, DiskFile
from headrace.storage.file import pack_format
from headrace.storage.file.pack_format import Contents, PackPart

DIRECTORY: Final = "streams"
BLOCK_BYTES: Final = 64 * 1024
_ENTRY = struct.Struct("<QQQQIII4x")  # messages, bytes, lengths at, data bytes, count, crcs
ENTRY_BYTES: Final = _ENTRY.size
_PLACE = struct.Struct("<QQ")  # stream id, number of the entry
_CHECKED: Final = ENTRY_BYTES - 8
_LENGTH_BYTES: Final = 4
_SUFFIXES: Final = ("data", "index", "lengths")
_OPEN_MAX: Final = 8  # of one reader: its parts may be in as many packs as it has


class Block(NamedTuple):
    start: Position
    lengths_at: int
    data_bytes: int
    messages: int
    crc: int
    """The bytes of data and of lengths in the files."""

    @property
    def end(self) -> Position:
        return Position(self.start.messages + self.messages, self.start.bytes + self.data_bytes)


class Sizes(NamedTuple):
    """How much of the index and the lengths is part of the stream; what follows is void.

    `packed` are the parts of it that are in packs, as the catalog has them.
    """

    blocks: int = 0
    lengths_bytes: int = 0
    first_block: int = 0  # the blocks before it were reclaimed
    packed: bytes = b""

    @property
    def all_blocks(self) -> int:
        return self.blocks + pack_format.count_parts(self.packed)


NO_FILES: Final = Sizes()


class Reclaimable(NamedTuple):
    """The reclaimable front of a stream's files."""

    blocks: int
    data_bytes: int
    lengths_bytes: int


def folder(stream_id: int) -> str:
    return f"{DIRECTORY}/{stream_id % 256:02x}"


def path(stream_id: int, suffix: str) -> str:
    return f"{folder(stream_id)}/{stream_id:016x}.{suffix}"


def remove(disk: Disk, stream_id: int) -> None:
    # Any of the files may be missing: a small stream has only parts in packs, and a removal may
    # have been interrupted by a crash.
    present = set(disk.list(folder(stream_id)))
    for suffix in _SUFFIXES:
        name = path(stream_id, suffix)
        if name.rpartition("/")[2] in present:
            disk.remove(name)


def reclaim(disk: Disk, stream_id: int, reclaimable: Reclaimable) -> None:
    """Punch out the reclaimable blocks, which the catalog no longer counts."""
    sizes = (reclaimable.data_bytes, reclaimable.blocks * ENTRY_BYTES, reclaimable.lengths_bytes)
    for suffix, size in zip(_SUFFIXES, sizes, strict=True):
        if size:
            file = disk.open(path(stream_id, suffix))
            # A hole, not a cut: an entry's place is its number, and a byte's place its offset.
            file.punch(0, size)
            file.close()


def _entry_crc(stream_id: int, number: int, entry: bytes) -> int:
    """The position is covered, too: an entry at another place is damage."""
    crc: int = google_crc32c.value(_PLACE.pack(stream_id, number) + entry[:_CHECKED])
    return crc


def _encode_entry(stream_id: int, number: int, block: Block) -> bytes:
    entry = _ENTRY.pack(
        *block.start, block.lengths_at, block.data_bytes, block.messages, block.crc, 0
    )
    return entry[:_CHECKED] + struct.pack("<I4x", _entry_crc(stream_id, number, entry))


def _decode_entry(stream_id: int, number: int, entry: bytes) -> Block:
    if len(entry) == ENTRY_BYTES:
        messages, first_byte, lengths_at, data_bytes, count, crc, own_crc = _ENTRY.unpack(entry)
        if own_crc == _entry_crc(stream_id, number, entry):
            return Block(Position(messages, first_byte), lengths_at, data_bytes, count, crc)
    raise StoredBytesDamaged(path(stream_id, "index"), str(number * ENTRY_BYTES))


def _block_crc(data: bytes, lengths: bytes) -> int:
    crc: int = google_crc32c.extend(google_crc32c.value(data), lengths)
    return crc


class StreamFileWriter:
    """Adds what a checkpoint has for one stream; nothing is durable before `sync`."""

    def __init__(self, disk: Disk, stream_id: int, base_bytes: int, sizes: Sizes) -> None:
        disk.make_directory(folder(stream_id))
        self._files = {
            suffix: disk.open(path(stream_id, suffix), create=True) for suffix in _SUFFIXES
        }
        self._id = stream_id
        self._base_bytes = base_bytes
        self.sizes = sizes

    def add(self, start: Position, lengths: Sequence[int], data: bytes) -> None:
        # Behind what the catalog counts. Bytes that an interrupted checkpoint left there are
        # overwritten; nothing that is counted ever is.
        self._files["data"].write(start.bytes - self._base_bytes, data)
        packed = struct.pack(f"<{len(lengths)}I", *lengths)
        self._files["lengths"].write(self.sizes.lengths_bytes, packed)
        entries = b""
        offset = packed_at = 0
        first, lengths_at = self.sizes.blocks, self.sizes.lengths_bytes
        number = first
        for count, size in _cut(lengths):
            packed_end = packed_at + count * _LENGTH_BYTES
            crc = _block_crc(data[offset : offset + size], packed[packed_at:packed_end])
            block = Block(start, lengths_at + packed_at, size, count, crc)
            entries += _encode_entry(self._id, number, block)
            start, offset, packed_at = block.end, offset + size, packed_end
            number += 1
        self._files["index"].write(first * ENTRY_BYTES, entries)
        self.sizes = self.sizes._replace(blocks=number, lengths_bytes=lengths_at + len(packed))

    def sync(self) -> None:
        for file in self._files.values():
            file.sync()

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def _cut(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Blocks of whole messages, as (messages, bytes)."""
    count = size = 0
    for length in lengths:
        if count and size + length > BLOCK_BYTES:
            yield count, size
            count = size = 0
        count += 1
        size += length
    if count:
        yield count, size


class StreamFileReader:
    """Reads ranges of one stream; use it once, on a worker, and close it."""

    def __init__(self, disk: Disk, stream_id: int, base_bytes: int, sizes: Sizes) -> None:
        self._disk = disk
        self._id = stream_id
        self._base_bytes = base_bytes
        self._own_blocks = sizes.blocks
        self._parts = pack_format.decode_parts(sizes.packed)
        self._blocks = sizes.blocks + len(self._parts)
        self._first_block = sizes.first_block
        self._open: dict[str, DiskFile] = {}

    def _file(self, suffix: str) -> DiskFile:
        return self._opened(path(self._id, suffix))

    def _opened(self, name: str) -> DiskFile:
        if name not in self._open:
            if len(self._open) >= _OPEN_MAX:
                self.close()
                self._open.clear()
            self._open[name] = self._disk.open(name)
        return self._open[name]

    def close(self) -> None:
        for file in self._open.values():
            file.close()

    def _block(self, number: int) -> Block | PackPart:
        if number >= self._own_blocks:
            return self._parts[number - self._own_blocks]
        return self._own_block(number)

    def _own_block(self, number: int) -> Block:
        entry = self._file("index").read(number * ENTRY_BYTES, ENTRY_BYTES)
        return _decode_entry(self._id, number, entry)

    def _find(self, first_byte: int, high: int) -> int:
        """The number of the block before `high` that holds the byte, by bisection."""
        low = self._first_block
        while high - low > 1:
            middle = (low + high) // 2
            if self._block(middle).start.bytes <= first_byte:
                low = middle
            else:
                high = middle
        return low

    def _contents_of(self, blocks: Sequence[Block | PackPart]) -> Contents:
        """Lengths and bytes of adjoining blocks, once they are known to be what was written."""
        own = [block for block in blocks if isinstance(block, Block)]
        found = [self._own_contents_of(own)] if own else []
        found += [
            pack_format.read_part(self._opened(pack_format.path(part.pack)), self._id, part)
            for part in blocks
            if isinstance(part, PackPart)
        ]
        if len(found) == 1:
            return found[0]
        lengths, data = zip(*found, strict=True)
        return tuple(chain.from_iterable(lengths)), b"".join(data)

    def _own_contents_of(self, blocks: Sequence[Block]) -> Contents:
        first, last = blocks[0], blocks[-1]
        place, lengths_at = first.start.bytes - self._base_bytes, first.lengths_at
        data = self._file("data").read(place, last.end.bytes - first.start.bytes)
        lengths_end = last.lengths_at + last.messages * _LENGTH_BYTES
        packed = self._file("lengths").read(lengths_at, lengths_end - lengths_at)
        for block in blocks:
            at = block.start.bytes - first.start.bytes
            packed_at = block.lengths_at - lengths_at
            own = data[at : at + block.data_bytes]
            own_lengths = packed[packed_at : packed_at + block.messages * _LENGTH_BYTES]
            if len(own) != block.data_bytes or _block_crc(own, own_lengths) != block.crc:
                raise StoredBytesDamaged(
                    path(self._id, "data"), f"{place + at} (or its lengths, at {block.lengths_at})"
                )
        return struct.unpack(f"<{len(packed) // _LENGTH_BYTES}I", packed), data

    def read(self, start: Position, limit: Position, bytes_max: int) -> Range | None:
        """Whole messages from `start`; None where it is not a boundary."""
        if self._first_block >= self._blocks:
            return None
        blocks = self._blocks_from(start, limit, bytes_max)
        first = blocks[0]
        lengths, data = self._contents_of(blocks)
        skip = start.messages - first.start.messages
        offset = start.bytes - first.start.bytes
        # An offset has two halves and clients can make one up: both must name the same boundary.
        if not 0 <= skip <= first.messages or sum(lengths[:skip]) != offset:
            return None
        count = min(limit.messages - start.messages, len(lengths) - skip)
        ends = list(accumulate(lengths[skip : skip + count]))
        # At least one message, however large, or a reader could never pass it.
        count = min(count, max(1, bisect_right(ends, bytes_max)))
        if not count:
            return None
        size = ends[count - 1]
        end = Position(start.messages + count, start.bytes + size)
        return Range(end, data[offset : offset + size], lengths[skip : skip + count])

    def _blocks_from(
        self, start: Position, limit: Position, bytes_max: int
    ) -> list[Block | PackPart]:
        """The block that holds `start`, and those behind it that a read may reach into."""
        number = self._find(start.bytes, self._blocks)
        blocks = [self._block(number)]
        while number + 1 < self._blocks:
            number += 1
            block = self._block(number)
            size = block.start.bytes - start.bytes
            if block.messages == 1:
                size += block.data_bytes - 1  # it is taken whole or not at all
            if size >= bytes_max or block.start.messages >= limit.messages:
                break
            blocks.append(block)
        return blocks

    def reclaimable_before(self, first_byte: int) -> Reclaimable:
        """The blocks that end at or before the byte, and what they take in each file."""
        number = self._find(first_byte, self._own_blocks)
        block = self._own_block(number)
        if block.end.bytes > first_byte:
            start = block.start.bytes - self._base_bytes
            return Reclaimable(number, start, block.lengths_at)
        end = block.end.bytes - self._base_bytes
        return Reclaimable(number + 1, end, block.lengths_at + block.messages * _LENGTH_BYTES)

    def check_part(self, first: int, bytes_max: int) -> tuple[int, CheckResult]:
        """Blocks from `first` on, up to about `bytes_max`; where to go on, and what was found."""
        checked = 0
        damage: list[HeadraceError] = []
        number = first
        while number < self._blocks and checked < bytes_max:
            try:
                block = self._block(number)
                checked += ENTRY_BYTES + block.data_bytes + block.messages * _LENGTH_BYTES
                self._contents_of([block])
            except StoredBytesDamaged as found:
                damage.append(found)
            number += 1
        return number, CheckResult(checked, damage)

    def check(self, tail: Position) -> Iterator[StoredBytesDamaged]:
        """Everything in this stream's files, up to `tail`, that is not as it was written."""
        expected: Position | None = None
        for number in range(self._first_block, self._blocks):
            try:
                block = self._block(number)
                if expected is not None and block.start != expected:
                    raise self._misplaced(number)
                self._contents_of([block])
                expected = block.end
            except StoredBytesDamaged as damage:
                # What should follow damage is unknown, so the check goes on without an expectation.
                expected = None
                yield damage
        if expected is not None and expected != tail:
            yield self._misplaced(self._blocks)

    def _misplaced(self, number: int) -> StoredBytesDamaged:
        """What follows is not what should: the index says it of blocks, the catalog of parts."""
        if number <= self._own_blocks:
            return StoredBytesDamaged(path(self._id, "index"), str(number * ENTRY_BYTES))
        part = self._parts[number - self._own_blocks - 1]
        return StoredBytesDamaged(pack_format.path(part.pack), str(part.place))
