"""A doublewrite file: batches that recovery is about to rewrite in place, stored elsewhere first.

A power cut while a batch is written over itself may leave neither the old bytes nor the new. So
recovery goes through these states, each durable before the next:

    journal/again    segment           journal/last     a crash here leads to
    absent           batch, unproven   does not cover   the same recovery again
    whole            batch, or torn    does not cover   readers overlay the copy; rewritten again
    whole            batch, synced     covers it        the rewrite is repeated, which is harmless
    absent           batch, synced     covers it        a normal start

`journal/again` is replaced atomically and has a checksum: it is whole or absent, and a damaged one
is damage. While it exists, every reader of the journal (recovery, `headrace verify`) takes these
batches from it, through `OverlaidSegment`.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from headrace.storage.disk import Disk, DiskFile
from headrace.storage.file import atomic_file

_PATH: Final = "journal/again"


class PendingBatch(msgspec.Struct, array_like=True):
    """A batch and its place: the segment's generation and the byte it begins at."""

    generation: int
    position: int
    data: bytes


def write(disk: Disk, batches: list[PendingBatch]) -> None:
    atomic_file.replace(disk, _PATH, msgspec.msgpack.encode(batches))


def read(disk: Disk) -> list[PendingBatch]:
    """The batches of the file, or none without one; raises StoredBytesDamaged."""
    payload = atomic_file.read(disk, _PATH)
    return [] if payload is None else msgspec.msgpack.decode(payload, type=list[PendingBatch])


def remove(disk: Disk) -> None:
    # The directory is not synced. If a power cut brings the file back, the next start repeats the
    # rewrite, which is the third row above: a segment that is in use under the same generation has
    # the same bytes in that place, and one that was recycled is left out.
    disk.remove(_PATH)


class Readable(Protocol):
    def read(self, offset: int, size: int) -> bytes: ...

    def size(self) -> int: ...


class OverlaidSegment:
    """A segment for readers, with the batches of the doublewrite file laid over it."""

    def __init__(self, file: DiskFile, batches: list[PendingBatch]) -> None:
        self._file = file
        self._batches = batches

    def read(self, offset: int, size: int) -> bytes:
        data = self._file.read(offset, size)
        # A batch lies within the file, whose length never changes while it is in use: no read is
        # cut short before the end of a batch.
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
