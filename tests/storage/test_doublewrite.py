"""Whoever looks at the journal while a batch is being written again sees the batch whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import StoredBytesDamaged
from headrace.storage.disk import RealDisk
from headrace.storage.file import doublewrite
from headrace.storage.file.doublewrite import PendingBatch
from headrace.storage.file.frames import HEADER_BYTES, DocumentsFrame, decode_header, encode_frame
from headrace.storage.file.journal import Journal, segment_name

SEGMENT_BYTES = 64 * 1024


def write_two_batches(disk: RealDisk) -> PendingBatch:
    """The second of them, as it stands in the journal."""
    journal = Journal(disk, segment_bytes=SEGMENT_BYTES)
    for value in (b"first", b"second"):
        journal.write([encode_frame(DocumentsFrame({"name": value}))])
    journal.close()
    file = disk.open(segment_name(1))
    first = decode_header(file.read(0, HEADER_BYTES))
    assert first is not None
    second = decode_header(file.read(first.size, HEADER_BYTES))
    assert second is not None
    found = PendingBatch(1, first.size, file.read(first.size, second.size))
    file.close()
    return found


def values(disk: RealDisk) -> list[bytes | None]:
    frames = [frame for _, frame in Journal(disk, segment_bytes=SEGMENT_BYTES).scan(0)]
    return [f.documents["name"] for f in frames if isinstance(f, DocumentsFrame)]


@pytest.mark.parametrize("torn", ["begin", "end", "all"])
def test_a_torn_batch_is_taken_from_where_it_was_set_down(tmp_path: Path, torn: str) -> None:
    disk = RealDisk(tmp_path)
    batch = write_two_batches(disk)
    doublewrite.write(disk, [batch])
    size = len(batch.data)
    start, count = {"begin": (0, 16), "end": (size - 16, 16), "all": (0, size)}[torn]
    file = disk.open(segment_name(1))
    file.write(batch.position + start, bytes(count))
    file.close()
    assert values(disk) == [b"first", b"second"]


def test_without_it_the_torn_batch_is_missed(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    batch = write_two_batches(disk)
    file = disk.open(segment_name(1))
    file.write(batch.position, bytes(len(batch.data)))
    file.close()
    assert values(disk) == [b"first"]


def test_damage_to_what_was_set_down_is_told(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    doublewrite.write(disk, [write_two_batches(disk)])
    path = tmp_path / "journal" / "again"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoredBytesDamaged, match="journal/again"):
        values(disk)


def test_a_copy_of_a_segment_under_a_name_of_its_own_is_not_read(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    write_two_batches(disk)
    (tmp_path / "journal/segment-1").write_bytes((tmp_path / segment_name(1)).read_bytes())
    assert values(disk) == [b"first", b"second"]
