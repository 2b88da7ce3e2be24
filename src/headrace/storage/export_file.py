"""An export: the shortest journal that leads to what a data directory holds, in one file.

    8 bytes     HREXPRT1
    4 + 4       CRC and length of the summary, then the summary: how much there is
    batches     as in the journal, one after the other
    a batch     without frames: the end, and the proof that nothing is missing

Every byte is covered by a checksum, and a file without its end is refused: half of an export is
never taken for a whole one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import google_crc32c
import msgspec

from headrace.storage.disk import DiskFile, RealDisk
from headrace.storage.file import batch_body, frames
from headrace.storage.file.frames import AppendFrame, BlobFrame, Frame

MAGIC: Final = b"HREXPRT1"
_SUMMARY = struct.Struct("<II")  # crc, length
SUMMARY_BYTES_MAX: Final = 4096
BATCH_BYTES: Final = 1024 * 1024
BATCH_FRAMES_MAX: Final = 1000
_GENERATION: Final = 1


class ExportUnusable(Exception):
    """A file that cannot be imported."""

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"{file} cannot be imported: {reason}.")


class Summary(msgspec.Struct, array_like=True, frozen=True):
    streams: int
    data_bytes: int
    documents: int
    last_id: int = 0  # the highest id that was ever used there


def write_export(path: Path, summary: Summary, found: Iterable[Frame]) -> None:
    """Write a new file; it has its name only when it is whole and durable."""
    disk = RealDisk(path.parent)
    part = f"{path.name}.part"
    file = disk.open(part, create=True)
    try:
        # An export that was interrupted may have left a longer file.
        file.truncate(0)
        _write(file, summary, found)
        file.sync()
    except BaseException:
        file.close()
        disk.remove(part)
        raise
    file.close()
    disk.rename(part, path.name)
    disk.sync_directory("")


def _write(file: DiskFile, summary: Summary, found: Iterable[Frame]) -> None:
    payload = msgspec.msgpack.encode(summary)
    head = MAGIC + _SUMMARY.pack(google_crc32c.value(payload), len(payload)) + payload
    file.write(0, head)
    position, lsn = len(head), 1
    end: list[Frame] = []
    for batch in chain(_batches(found), (end,)):
        encoded = [frames.encode_frame(frame) for frame in batch]
        header, pieces = frames.encode_batch(encoded, _GENERATION, lsn, 0)
        file.write(position, *pieces)
        position, lsn = position + header.size, header.next_lsn


def _batches(found: Iterable[Frame]) -> Iterator[list[Frame]]:
    batch: list[Frame] = []
    size = 0
    for frame in found:
        batch.append(frame)
        size += len(frame.data) if isinstance(frame, AppendFrame | BlobFrame) else 0
        if size >= BATCH_BYTES or len(batch) >= BATCH_FRAMES_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class ExportReader:
    """Reads an export from its beginning to its end; use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = RealDisk(path.parent).open(path.name)
        self._position = 0
        try:
            self.summary = self._read_summary()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ExportReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def _read(self, size: int) -> bytes:
        data = self._file.read(self._position, size)
        if len(data) < size:
            raise ExportUnusable(
                self._path,
                f"it is truncated at byte {self._position + len(data)}",
            )
        self._position += size
        return data

    def _damaged(self, position: int) -> ExportUnusable:
        return ExportUnusable(self._path, f"it is damaged at byte {position}")

    def _read_summary(self) -> Summary:
        if self._file.read(0, len(MAGIC)) != MAGIC:
            raise ExportUnusable(self._path, "it is not an export of this version")
        self._position = len(MAGIC)
        crc, length = _SUMMARY.unpack(self._read(_SUMMARY.size))
        if length > SUMMARY_BYTES_MAX:
            raise self._damaged(len(MAGIC))
        payload = self._read(length)
        if google_crc32c.value(payload) != crc:
            raise self._damaged(len(MAGIC))
        return msgspec.msgpack.decode(payload, type=Summary)

    def frames(self) -> Iterator[Frame]:
        """Every frame; raises ExportUnusable where the file is not what was written."""
        lsn = 1
        while True:
            begin = self._position
            header = frames.decode_header(self._read(frames.HEADER_BYTES))
            if header is None or (header.generation, header.first_lsn) != (_GENERATION, lsn):
                raise self._damaged(begin)
            body = self._read(header.size - frames.HEADER_BYTES)
            body = body[: header.body_bytes]
            if not frames.body_matches(header, body):
                raise self._damaged(begin)
            if not body:
                break
            yield from batch_body.decode_frames(body)
            lsn = header.next_lsn
        # What follows the end was not written by an export: two files in one, or the wrong one.
        if self._file.size() != self._position:
            raise self._damaged(self._position)
