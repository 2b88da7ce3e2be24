"""The journal: one log of all changes of all streams, in segments that are used again.

A segment is zeroed before its first use. Each use has a generation of its own, in the segment's
name and in every batch, so what an earlier use left behind is void. Recovery takes whole batches
only, and syncs what it takes: after a kill, frames may look committed that are only in the page
cache.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.errors import StoredBytesDamaged
from headrace.storage import frames
from headrace.storage.disk import Disk, DiskFile
from headrace.storage.frames import BatchHeader, Frame

logger = logging.getLogger(__name__)

DIRECTORY: Final = "journal"
SEGMENT_BYTES: Final = 64 * 1024 * 1024
_USED: Final = "segment-"
_FREE: Final = "free-"
_ZEROS_BYTES: Final = 1024 * 1024


class Segment(NamedTuple):
    """A stretch of the journal that is full: frames from `first_lsn` up to `next_lsn`."""

    generation: int
    first_lsn: int
    next_lsn: int

    @property
    def name(self) -> str:
        return segment_name(self.generation)


def segment_name(generation: int) -> str:
    return f"{DIRECTORY}/{_USED}{generation:016d}"


@dataclass
class _Current:
    """The segment being written."""

    file: DiskFile
    generation: int
    first_lsn: int
    position: int
    size: int


class Journal:
    def __init__(
        self, disk: Disk, *, sync: bool = True, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._disk = disk
        self._sync = sync
        self._segment_bytes = segment_bytes
        self._current: _Current | None = None
        self._generation = 0
        self.next_lsn = 1
        self.durable_lsn = 0
        self._proven_lsn = 0
        self.sealed: list[Segment] = []
        disk.make_directory(DIRECTORY)

    # -- writing ---------------------------------------------------------------------------

    def write(self, batch: list[Frame]) -> None:
        """Append a batch and sync it; it is durable when this returns."""
        header, data = self._encode(batch)
        current = self._current
        if current is None or current.position + len(data) > current.size:
            current = self._rotate(len(data))
            header, data = self._encode(batch)
        current.file.write(current.position, data)
        if self._sync:
            current.file.sync()
        current.position += len(data)
        self._proven_lsn = self.durable_lsn
        self.next_lsn = header.next_lsn
        self.durable_lsn = self.next_lsn - 1

    def seal(self) -> None:
        """When nothing is going on: put on record that all there is is durable."""
        if self._current is not None and self._proven_lsn < self.durable_lsn:
            self.write([])

    def _encode(self, batch: list[Frame]) -> tuple[BatchHeader, bytes]:
        # Without a sync nothing is known to be durable, so nothing is claimed to be.
        durable_lsn = self.durable_lsn if self._sync else 0
        return frames.encode_batch(batch, self._generation, self.next_lsn, durable_lsn)

    def _rotate(self, size: int) -> _Current:
        self._finish_current()
        self._generation += 1
        name = segment_name(self._generation)
        self._take(name, max(size, self._segment_bytes))
        file = self._disk.open(name)
        self._current = _Current(file, self._generation, self.next_lsn, 0, file.size())
        return self._current

    def _finish_current(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.file.close()
            self.sealed.append(Segment(current.generation, current.first_lsn, self.next_lsn))

    def _take(self, name: str, size: int) -> None:
        """Give a free segment, or a new one, the name under which it is used."""
        if size <= self._segment_bytes:
            for free in self._free():
                self._disk.rename(f"{DIRECTORY}/{free}", name)
                self._disk.sync_directory(DIRECTORY)
                return
        self._make(f"{name}.new", size)
        self._disk.rename(f"{name}.new", name)
        self._disk.sync_directory(DIRECTORY)

    def _make(self, name: str, size: int) -> None:
        file = self._disk.open(name, create=True)
        zeros = bytes(_ZEROS_BYTES)
        for offset in range(0, size, _ZEROS_BYTES):
            file.write(offset, zeros[: size - offset])
        file.sync()
        file.close()

    def _free(self) -> list[str]:
        return [name for name in self._disk.list(DIRECTORY) if name.startswith(_FREE)]

    def release(self, applied_lsn: int) -> None:
        """Everything up to `applied_lsn` is kept elsewhere: its segments may be used again."""
        kept = []
        for segment in self.sealed:
            if segment.next_lsn - 1 > applied_lsn:
                kept.append(segment)
            elif self._free():
                self._disk.remove(segment.name)
            else:
                self._disk.rename(segment.name, f"{DIRECTORY}/{_FREE}{segment.generation:016d}")
        self.sealed = kept
        self._disk.sync_directory(DIRECTORY)

    def rotate(self) -> None:
        """Seal the segment being written, so that it can be applied."""
        if self._current is not None and self._current.position:
            self._finish_current()

    def close(self) -> None:
        if self._current is not None:
            self._current.file.close()
            self._current = None

    # -- reading ---------------------------------------------------------------------------

    def recover(self, applied_lsn: int) -> Iterator[tuple[int, Frame]]:
        """Frames after `applied_lsn`, with their numbers; afterwards the journal goes on."""
        names = [n for n in self._disk.list(DIRECTORY) if n.startswith(_USED)]
        for leftover in (n for n in names if n.endswith(".new")):
            self._disk.remove(f"{DIRECTORY}/{leftover}")
        generations = [int(n.removeprefix(_USED)) for n in names if not n.endswith(".new")]
        self.next_lsn = applied_lsn + 1
        expected: int | None = None
        for generation in generations:
            begun = self._first_header(generation)
            if begun is None:
                continue  # taken, and never written to
            if expected is not None and begun.first_lsn != expected:
                self._check_gap(generation, begun, expected)
                break
            expected = begun.first_lsn
            for lsn, found in self._scan(generation, expected):
                expected = lsn + len(found)
                for number, frame in enumerate(found, lsn):
                    if number > applied_lsn:
                        yield number, frame
            self._check_end(generation, expected)
            self.sealed.append(Segment(generation, begun.first_lsn, expected))
        if expected is not None:
            self.next_lsn = max(expected, applied_lsn + 1)
        self._generation = max(generations, default=0)
        self.durable_lsn = self._proven_lsn = self.next_lsn - 1
        self._sync_recovered()

    def _first_header(self, generation: int) -> BatchHeader | None:
        file = self._disk.open(segment_name(generation))
        header = frames.decode_header(file.read(0, frames.HEADER_BYTES))
        file.close()
        return header if header is not None and header.generation == generation else None

    def _check_gap(self, generation: int, begun: BatchHeader, expected: int) -> None:
        """A segment that does not go on where the one before it ends."""
        if begun.durable_lsn >= expected:
            raise StoredBytesDamaged(segment_name(generation - 1), f"frame {expected}")
        logger.warning("%s was never synced and is void", segment_name(generation))

    def scan_segment(self, segment: Segment) -> Iterator[tuple[int, Frame]]:
        """The frames of a sealed segment, with their numbers."""
        for lsn, found in self._scan(segment.generation, segment.first_lsn):
            yield from enumerate(found, lsn)

    def _scan(self, generation: int, expected: int | None) -> Iterator[tuple[int, list[Frame]]]:
        file = self._disk.open(segment_name(generation))
        try:
            position = 0
            while True:
                header = frames.decode_header(file.read(position, frames.HEADER_BYTES))
                if header is None or header.generation != generation:
                    break
                if expected is not None and header.first_lsn != expected:
                    break
                body = file.read(position + frames.HEADER_BYTES, header.body_bytes)
                found = frames.decode_body(header, body)
                if found is None:
                    break
                yield header.first_lsn, found
                expected = header.next_lsn
                position += header.size
            self._scanned = position
        finally:
            file.close()

    def _check_end(self, generation: int, expected: int) -> None:
        """Tell a write that never finished from damage to what was durable."""
        file = self._disk.open(segment_name(generation))
        try:
            proof = self._later_proof(file, generation, self._scanned)
        finally:
            file.close()
        if proof >= expected:
            raise StoredBytesDamaged(segment_name(generation), str(self._scanned))

    def _later_proof(self, file: DiskFile, generation: int, position: int) -> int:
        """The highest frame that a batch behind `position` knows to be durable."""
        size = file.size()
        highest = 0
        while position < size:
            window = file.read(position, _ZEROS_BYTES + frames.HEADER_BYTES)
            at = window.find(frames.MAGIC)
            while 0 <= at < _ZEROS_BYTES:
                header = frames.decode_header(window[at : at + frames.HEADER_BYTES])
                if header is not None and header.generation == generation:
                    highest = max(highest, header.durable_lsn)
                at = window.find(frames.MAGIC, at + 1)
            position += _ZEROS_BYTES
        return highest

    def _sync_recovered(self) -> None:
        for segment in self.sealed:
            file = self._disk.open(segment.name)
            file.sync()
            file.close()
