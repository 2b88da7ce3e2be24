"""A doublewrite file: batches that recovery is about to rewrite in place, stored elsewhere first.

Power that fails while a batch is written over itself may leave neither the old bytes nor the new.
While the file (`journal/again`) exists, readers of the journal take these batches from it.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from headrace.storage.disk import Disk, DiskFile
from headrace.storage.file import atomic_file

_PATH: Final = "journal/again"


class PendingBatch(msgspec.Struct, array_like=True):
    generation: int
    position: int
    data: bytes


def write(disk: Disk, batches: list[PendingBatch]) -> None:
    atomic_file.replace(disk, _PATH, msgspec.msgpack.encode(batches))


def read(disk: Disk) -> list[PendingBatch]:
    """What is set down; raises StoredBytesDamaged where that is not what was written."""
    payload = atomic_file.read(disk, _PATH)
    return [] if payload is None else msgspec.msgpack.decode(payload, type=list[PendingBatch])


def remove(disk: Disk) -> None:
    disk.remove(_PATH)


class Readable(Protocol):
    def read(self, offset: int, size: int) -> bytes: ...

    def size(self) -> int: ...


class OverlaidSegment:
    """A segment to look at, with what is set down of it in its places."""

    def __init__(self, file: DiskFile, batches: list[PendingBatch]) -> None:
        self._file = file
        self._batches = batches

    def read(self, offset: int, size: int) -> bytes:
        data = self._file.read(offset, size)
        for batch in self._batches:
            first = max(offset, batch.position)
            end = min(offset + len(data), batch.position + len(batch.data))
            if first < end:
                rewritten = batch.data[first - batch.position : end - batch.position]
                data = data[: first - offset] + rewritten + data[end - offset :]
        return data

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()
