"""The journal: a write-ahead log of all changes of all streams, in segments that are recycled.

Theory of operation. A frame is one change; a batch is what one sync makes durable; a segment is a
file of batches, zeroed before its first use so that a sync writes no metadata. Frames are numbered
without gaps (LSN). Each use of a segment has a generation of its own, in its name and in every
batch header, so batches that an earlier use left in the file are not mistaken for new ones.

Torn or damaged? Bytes that are not a valid batch end the journal if they come from a write that
never finished, and are corruption if they were once durable. Both look alike, so every header
carries the highest LSN known to be durable when it was written. Damage at or below the highest
such mark found anywhere behind it is corruption and stops the start; above it the tail was torn
and is dropped. A valid batch behind a bad one proves nothing by itself: the pages of one unsynced
write reach the disk in any order. An idle journal writes an empty batch (`prove_durable`), so the
last real one is covered as well. `journal/last` names the newest segment before its first use, so
that the loss of a whole file is noticed too.

Recovery: `scan` yields whole batches in order and changes nothing. Then `finish_recovery` makes
what was accepted safe to build on:

    1. finish a rewrite that an earlier recovery began (see doublewrite)
    2. remove segments that were begun behind frames that were never synced: a later run writes
       frames with the same numbers, and the two must not be confused
    3. rewrite and sync the batches that no later header covers. After a kill they look committed
       and may be in the page cache only. A sync alone is not enough: after one that failed, the
       kernel marks the pages clean and reports success for bytes that never reached the disk

Nothing is written before all three are done. On a disk that is full or read-only they are put
off until the first write, and the journal serves reads.

Threads: `write`, `rotate`, `prove_durable`, `recycle` and `remove_free_segments` run on the
committer's thread (at the start and at the end, with no such thread, on the main one). `sealed` is
replaced by it and read by the event loop and the checkpoint thread, which also calls
`scan_segment`: that reads sealed files and touches no field.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from headrace.errors import InsufficientStorage, StoredBytesDamaged
from headrace.storage.base import Postponed
from headrace.storage.disk import Disk, DiskFile, SyncFailed, is_transient_disk_error
from headrace.storage.file import atomic_file, batch_body, doublewrite, frames
from headrace.storage.file.doublewrite import PendingBatch
from headrace.storage.file.frames import BatchHeader, EncodedFrame, Frame

logger = logging.getLogger(__name__)

DIRECTORY: Final = "journal"
LAST: Final = "journal/last"
SEGMENT_BYTES: Final = 64 * 1024 * 1024
_USED: Final = "segment-"
_FREE: Final = "free-"
SEGMENTS_OF_A_DISK_MIN: Final = 32
SMALL_SEGMENT_BYTES: Final = 1024 * 1024  # of a disk that is full: some ten thousand deletes
FREE_SEGMENTS_MAX: Final = 3  # kept to be used again; as many as are released together
_AHEAD_BYTES: Final = 1024 * 1024
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


def _free_name(generation: int) -> str:
    return f"{DIRECTORY}/{_FREE}{generation:016d}"


class LastSegment(msgspec.Struct, array_like=True):
    """`journal/last`: the newest segment, recorded before its first use: its loss is noticed.

    `size` is 0 once the segment has been given up again; `first_lsn` is then the next frame's.
    `first_lsn` is 0 where nothing is synced: then no frame before it is known to be durable.
    `proven_lsn` is the last frame that a recovery or an orderly end made durable.
    """

    generation: int
    size: int
    first_lsn: int
    proven_lsn: int = 0


class _Unproven(NamedTuple):
    """A batch that no later header proves durable."""

    generation: int
    position: int
    size: int
    next_lsn: int


@dataclass
class _Current:
    """The segment being written."""

    file: DiskFile
    generation: int
    first_lsn: int
    position: int
    size: int


class _ReadAhead:
    """Reads a file from its beginning to its end in few large pieces."""

    def __init__(self, file: doublewrite.Readable) -> None:
        self._file = file
        self._piece = b""
        self._begin = 0

    def read(self, offset: int, size: int) -> bytes:
        at = offset - self._begin
        if at < 0 or at + size > len(self._piece):
            self._piece = self._file.read(offset, max(size, _AHEAD_BYTES))
            self._begin, at = offset, 0
        return self._piece[at : at + size]

    def size(self) -> int:
        return self._file.size()


def fitting_segment_bytes(wanted: int, disk_bytes: int) -> int:
    """A segment of a size that leaves most of a small disk to the streams.

    The journal has up to five of them, used or kept to be used again, and one is held in reserve.
    """
    return min(wanted, max(SMALL_SEGMENT_BYTES, disk_bytes // SEGMENTS_OF_A_DISK_MIN))


class Journal:
    def __init__(
        self, disk: Disk, *, sync: bool = True, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._disk = disk
        self._sync = sync
        self._segment_bytes = segment_bytes
        self._current: _Current | None = None
        self._generation = 0
        # next_lsn > durable_lsn >= _proven_lsn: the next frame, the last synced one, and the last
        # one that a header on the disk says is synced. What lies between the last two looks, after
        # a crash, like a write that may have been torn.
        self.next_lsn = 1
        self.durable_lsn = 0
        self._proven_lsn = 0
        self.sealed: tuple[Segment, ...] = ()
        """Full segments, oldest first; replaced as a whole, so that any thread may read it."""
        self._unsynced_segments: list[int] = []
        self._unproven: list[_Unproven] = []
        self._next_segment: tuple[int, int] | None = None  # generation and size, not yet written to
        self.is_recovered = True
        """Whether nothing that was recovered is left to be written again before writing goes on."""
        disk.make_directory(DIRECTORY)
        self._last = self._read_last()
        self._pending: list[PendingBatch] = []

    # -- writing ---------------------------------------------------------------------------

    def write(self, batch: list[EncodedFrame]) -> None:
        """Append a batch and sync it; it is durable when this returns.

        Raises Postponed if there is no room or the disk is read-only: then it can be called again.
        """
        header, pieces = self._encode(batch)
        current = self._current
        # Only the beginning of a segment needs room on the disk: a segment is zeroed in full before
        # its first batch. So ENOSPC is met here, before anything of the batch is written, and never
        # in the middle of a batch.
        if current is None or current.position + header.size > current.size:
            try:
                self.finish_recovery()
                current = self._rotate(header.size)
            except OSError as error:
                if is_transient_disk_error(error):
                    raise Postponed(error) from error
                raise
            # Encoded again: the header carries the generation of the segment.
            header, pieces = self._encode(batch)
        try:
            current.file.write(current.position, *pieces)
        except OSError as error:
            # Some of it may be there. It is not whole, so nobody reads it, and the next attempt
            # begins at the same place.
            if is_transient_disk_error(error):
                raise Postponed(error) from error
            raise
        # From here on a failure is final: whether the batch is durable is unknown, and the
        # committer is poisoned by what is raised.
        if self._sync:
            current.file.sync()
        current.position += header.size
        # The header just synced carries the old `durable_lsn`, so that is what is proven now.
        self._proven_lsn = self.durable_lsn
        self.next_lsn = header.next_lsn
        self.durable_lsn = self.next_lsn - 1

    def prove_durable(self) -> None:
        """While idle, write an empty batch whose header proves that the last real one is durable.

        Without it, damage to the last batch could not be distinguished from a torn write for as
        long as the server is idle, and the next start would drop an acknowledged append.
        """
        if self._current is not None and self._proven_lsn < self.durable_lsn:
            self.write([])

    def _encode(self, batch: list[EncodedFrame]) -> tuple[BatchHeader, list[bytes]]:
        # Without a sync nothing is known to be durable, so nothing is claimed to be.
        durable_lsn = self.durable_lsn if self._sync else 0
        return frames.encode_batch(batch, self._generation, self.next_lsn, durable_lsn)

    def _rotate(self, size: int) -> _Current:
        """Begin a segment; where that fails for want of room, it can be called again.

        The order is the invariant: the file exists in full, then `journal/last` names it, then it
        is written to. A start that finds `journal/last` naming a missing or short file knows that
        a file was lost, and does not take the journal for one that ends earlier.
        """
        self._finish_current()
        generation, taken_bytes = self._take_segment(size)
        file = self._disk.open(segment_name(generation))
        try:
            self._write_last(LastSegment(generation, taken_bytes, self._kept_until()))
        except BaseException:
            file.close()
            raise
        self._next_segment = None
        self._current = _Current(file, generation, self.next_lsn, 0, taken_bytes)
        return self._current

    def _take_segment(self, size: int) -> tuple[int, int]:
        """The generation and size of a segment to begin; perhaps one that was taken before.

        A segment that was taken and not begun (`_write_last` found no room) is kept for the next
        attempt: a generation is never used for two files.
        """
        if self._next_segment is not None and self._next_segment[1] < size:
            generation, _ = self._next_segment
            self._disk.remove(segment_name(generation))
            self._next_segment = None
        if self._next_segment is None:
            name = segment_name(self._generation + 1)
            self._take(name, self._affordable(size))
            self._generation += 1
            self._next_segment = self._generation, self._size_of(name)
        return self._next_segment

    def _affordable(self, size: int) -> int:
        """How large a segment to take for a batch of `size`: a small one, where room is short."""
        wanted = max(size, self._segment_bytes)
        refusal = self._disk.refusal()
        is_short = isinstance(refusal, InsufficientStorage) and refusal.free_bytes < wanted
        return max(size, min(wanted, SMALL_SEGMENT_BYTES)) if is_short else wanted

    def _size_of(self, name: str) -> int:
        file = self._disk.open(name)
        try:
            return file.size()
        finally:
            file.close()

    def _finish_current(self) -> None:
        current, self._current = self._current, None
        # From here on the file is not written to, so the checkpoint's thread may read it.
        if current is not None:
            current.file.close()
            segment = Segment(current.generation, current.first_lsn, self.next_lsn)
            self.sealed = (*self.sealed, segment)

    def _take(self, name: str, size: int) -> None:
        """Give a free segment, or a new one, the name under which it is used."""
        if size <= self._segment_bytes:
            for free in self._free():  # none of them is smaller than segments are
                self._disk.rename(f"{DIRECTORY}/{free}", name)
                self._disk.sync_directory(DIRECTORY)
                return
        self._make(f"{name}.new", size)
        self._disk.rename(f"{name}.new", name)
        self._disk.sync_directory(DIRECTORY)

    def _make(self, name: str, size: int) -> None:
        file = self._disk.open(name, create=True)
        zeros = bytes(_ZEROS_BYTES)
        try:
            for offset in range(0, size, _ZEROS_BYTES):
                file.write(offset, zeros[: size - offset])
            file.sync()
        except OSError as error:
            if is_transient_disk_error(error):
                # Half a segment is useless, and checkpoints, which free space, need the room.
                with suppress(OSError):
                    self._disk.remove(name)
            raise
        finally:
            file.close()

    def remove_free_segments(self) -> bool:
        """Give up the segments that are kept to be used again; whether there were any."""
        free = self._free()
        for name in free:
            self._disk.remove(f"{DIRECTORY}/{name}")
        return bool(free)

    def _free(self) -> list[str]:
        return [name for name in self._disk.list(DIRECTORY) if name.startswith(_FREE)]

    def recycle(self, applied_lsn: int) -> None:
        """Everything up to `applied_lsn` is kept elsewhere: its segments may be used again."""
        kept = [segment for segment in self.sealed if segment.next_lsn - 1 > applied_lsn]
        # The newest segment goes too, so `journal/last` must not make a start miss it.
        if self._current is None and not kept and self._last.size:
            self._write_last(LastSegment(self._generation, 0, self._kept_until()))
        # Zeroing a new one takes as long as hundreds of batches; but a full disk needs the room.
        free_max = FREE_SEGMENTS_MAX if self._disk.refusal() is None else 1
        for segment in [one for one in self.sealed if one not in kept]:
            is_small = self._size_of(segment.name) < self._segment_bytes
            if is_small or len(self._free()) >= free_max:
                self._disk.remove(segment.name)
            else:
                # Its old batches stay in it. They carry the old generation, so that a reader of the
                # next use stops at them instead of taking them for new ones.
                self._disk.rename(segment.name, _free_name(segment.generation))
            self.sealed = tuple(one for one in self.sealed if one != segment)
        self._disk.sync_directory(DIRECTORY)

    def _read_last(self) -> LastSegment:
        payload = atomic_file.read(self._disk, LAST)
        return (
            LastSegment(0, 0, 0)
            if payload is None
            else msgspec.msgpack.decode(payload, type=LastSegment)
        )

    def _write_last(self, last: LastSegment) -> None:
        atomic_file.replace(self._disk, LAST, msgspec.msgpack.encode(last))
        self._last = last

    def _kept_until(self) -> int:
        """The frame that all durable ones come before; without syncs a power cut may take any."""
        return self.next_lsn if self._sync else 0

    def rotate(self) -> None:
        """Seal the segment being written, so that it can be applied."""
        if self._current is not None and self._current.position:
            self._finish_current()

    def close(self) -> None:
        """Close the file."""
        if self._current is not None:
            self._current.file.close()
            self._current = None

    def finish(self) -> None:
        """An orderly end: what is durable is on record in two places."""
        self.prove_durable()
        if self._sync and self._last.proven_lsn < self.durable_lsn:
            self._write_last(msgspec.structs.replace(self._last, proven_lsn=self.durable_lsn))

    # -- reading ---------------------------------------------------------------------------

    def recover(self, applied_lsn: int) -> Iterator[tuple[int, Frame]]:
        """Frames after `applied_lsn`, with their numbers; afterwards the journal goes on."""
        self.is_recovered = False
        yield from self.scan(applied_lsn)
        try:
            self.finish_recovery()
        except OSError as error:
            if not is_transient_disk_error(error):
                raise
            logger.warning("the journal is readable but cannot be written yet: %s", error)
            # Refusing to start would also refuse the deletes that make room. So the rewrite waits
            # for the first write (`write` calls `finish_recovery` before it begins a segment).
            self._sync_unproven()

    def finish_recovery(self) -> None:
        """Make what was recovered safe to build on, unless that is done; can be called again.

        Until then the journal can be read, on a disk that is full or read-only, too.
        """
        if self.is_recovered:
            return
        # Files that were being made when the process ended. Nothing refers to a file before it has
        # lost this suffix.
        for leftover in (n for n in self._disk.list(DIRECTORY) if n.endswith(".new")):
            self._disk.remove(f"{DIRECTORY}/{leftover}")
        # In this order: a rewrite that a power cut interrupted first, since batches may be torn in
        # their places now; then what must never be read again; then a rewrite of our own.
        self._restore_pending()
        self._remove_unsynced_segments()
        if self._sync:
            self._rewrite_unproven()
        self.is_recovered = True

    def _remove_unsynced_segments(self) -> None:
        # The newest first: after a crash in between, what is left is still behind the same gap.
        while self._unsynced_segments:
            generation = self._unsynced_segments[-1]
            # The next run writes frames with the same numbers, and the two must not be confused.
            logger.warning("%s was never synced and is removed", segment_name(generation))
            self._disk.remove(segment_name(generation))
            self._unsynced_segments.pop()
            if not self._unsynced_segments:
                self._disk.sync_directory(DIRECTORY)

    def _sync_unproven(self) -> None:
        """The most that can be done before serving from a disk without room for the rewrite."""
        for generation in {batch.generation for batch in self._unproven} if self._sync else ():
            file = self._disk.open(segment_name(generation))
            try:
                file.sync()
            except SyncFailed as error:
                if error.errno != errno.EROFS:  # read-only: no page can be lost any more
                    raise
            finally:
                file.close()

    def scan(self, applied_lsn: int) -> Iterator[tuple[int, Frame]]:
        """Read without changing anything: frames after `applied_lsn`; raises on damage."""
        self._expected = applied_lsn + 1
        self._pending = doublewrite.read(self._disk)
        generations = self._generations()
        for generation in generations:
            yield from self._scan_next(generation, applied_lsn)
        self._check_last(generations)
        # Everything accepted counts as durable from here on; `finish_recovery` makes it so before
        # anything new is written.
        self.next_lsn = self._expected
        self._generation = max(generations, default=self._last.generation)
        self.durable_lsn = self._proven_lsn = self.next_lsn - 1

    def _generations(self) -> list[int]:
        names = self._disk.list(DIRECTORY)
        found = ((name, name.removeprefix(_USED)) for name in names if name.startswith(_USED))
        numbers = ((name, int(number)) for name, number in found if number.isdecimal())
        # `segment-1` is not ours, even with the first segment next to it: read as that one, its
        # frames would come twice, and their streams be set aside.
        return [number for name, number in numbers if segment_name(number) == f"{DIRECTORY}/{name}"]

    def _scan_next(self, generation: int, applied_lsn: int) -> Iterator[tuple[int, Frame]]:
        """One segment, which continues the journal, lies behind a gap, or was never begun."""
        again = [batch for batch in self._pending if batch.generation == generation]
        file = doublewrite.OverlaidSegment(self._disk.open(segment_name(generation)), again)
        try:
            begun = frames.decode_header(file.read(0, frames.HEADER_BYTES))
            if begun is None or begun.generation != generation:
                self._require_torn_write(file, generation, 0)
                return  # taken, and never written to
            if begun.first_lsn > self._expected:
                # A gap. If this header knows the missing frame as durable, it was lost; otherwise
                # the power failed while both segments were unsynced, and only the second arrived.
                if begun.durable_lsn >= self._expected:
                    raise StoredBytesDamaged(DIRECTORY, f"frame {self._expected}")
                self._unsynced_segments.append(generation)
                return
            position, lsn = 0, begun.first_lsn
            for position, header, body in self._batches(_ReadAhead(file), generation, lsn):
                lsn = header.next_lsn
                self._note_batch(generation, position, header)
                for number, frame in enumerate(batch_body.decode_frames(body), header.first_lsn):
                    if number > applied_lsn:
                        yield number, frame
                position += header.size
            self._expected = max(self._expected, lsn)
            self._require_torn_write(file, generation, position)
            self.sealed = (*self.sealed, Segment(generation, begun.first_lsn, lsn))
        finally:
            file.close()

    def _note_batch(self, generation: int, position: int, header: BatchHeader) -> None:
        """Track the batches that no later header proves durable: usually only the last one."""
        self._unproven = [b for b in self._unproven if b.next_lsn - 1 > header.durable_lsn]
        self._unproven.append(_Unproven(generation, position, header.size, header.next_lsn))

    def _check_last(self, generations: list[int]) -> None:
        """The segment that was taken last must be there, whole, and the journal reach it."""
        last = self._last
        # Segments without `journal/last`: it is written before the first one, so it was lost.
        if not last.generation and self.sealed:
            raise StoredBytesDamaged(LAST, "0")
        if max(last.first_lsn, last.proven_lsn + 1) > self._expected:
            raise StoredBytesDamaged(DIRECTORY, f"frame {self._expected}")
        if not last.size:
            return  # the newest segment was recycled, and none was begun since
        if last.generation not in generations:
            raise StoredBytesDamaged(segment_name(last.generation), "0")
        file = self._disk.open(segment_name(last.generation))
        size = file.size()
        file.close()
        if size < last.size:
            raise StoredBytesDamaged(segment_name(last.generation), str(size))

    def scan_segment(self, segment: Segment) -> Iterator[tuple[int, bytes]]:
        """The bodies of a sealed segment's batches, each with the number of its first frame."""
        file = self._disk.open(segment.name)
        try:
            lsn = segment.first_lsn
            for _, header, body in self._batches(_ReadAhead(file), segment.generation, lsn):
                yield header.first_lsn, body
                lsn = header.next_lsn
        finally:
            file.close()
        if lsn < segment.next_lsn:
            raise StoredBytesDamaged(segment.name, f"frame {lsn}")

    def _batches(
        self, file: doublewrite.Readable, generation: int, expected: int
    ) -> Iterator[tuple[int, BatchHeader, bytes]]:
        """Whole batches that follow one another, each with its place and its body.

        Ends, without an opinion, at the first bytes that are not the next batch: zeros, batches of
        an earlier use, a torn write, or damage. `_require_torn_write` distinguishes the last two.
        """
        position = 0
        while True:
            header = frames.decode_header(file.read(position, frames.HEADER_BYTES))
            if header is None or header.generation != generation or header.first_lsn != expected:
                return
            body = file.read(position + frames.HEADER_BYTES, header.body_bytes)
            if not frames.body_matches(header, body):
                return
            yield position, header, body
            expected = header.next_lsn
            position += header.size

    def _require_torn_write(
        self, file: doublewrite.Readable, generation: int, position: int
    ) -> None:
        """Raise if a later header knows the next frame as durable: then this is damage."""
        if self._durable_lsn_after(file, generation, position) >= self._expected:
            raise StoredBytesDamaged(segment_name(generation), str(position))

    def _durable_lsn_after(self, file: doublewrite.Readable, generation: int, position: int) -> int:
        """The highest frame that a batch behind `position` knows to be durable.

        Searched by magic number and header checksum, not batch by batch: the length in a damaged
        header leads nowhere. Windows overlap by a header, so none is missed at an edge.
        """
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

    def _rewrite_unproven(self) -> None:
        """Write again, and sync, what is accepted and may only be in the page cache.

        A sync alone is not enough: after one that failed, the kernel takes pages for written that
        never were, and reports success from then on. The batches go to the doublewrite file first:
        a power cut while one is written over itself may leave neither the old bytes nor the new.
        """
        if not self._unproven:
            return
        batches = []
        for batch in self._unproven:
            file = self._disk.open(segment_name(batch.generation))
            data = file.read(batch.position, batch.size)
            file.close()
            batches.append(PendingBatch(batch.generation, batch.position, data))
        doublewrite.write(self._disk, batches)
        self._restore_pending()
        # Recorded before the copy goes: from now on damage to these batches is damage, and the next
        # start does not take it for a torn write.
        self._write_last(msgspec.structs.replace(self._last, proven_lsn=self.durable_lsn))
        doublewrite.remove(self._disk)
        self._unproven = []

    def _restore_pending(self) -> None:
        """Write the batches of the doublewrite file into their segments. Can be repeated."""
        present = self._generations()
        for batch in doublewrite.read(self._disk):
            if batch.generation not in present:
                continue  # recycled since: a checkpoint has its frames
            file = self._disk.open(segment_name(batch.generation))
            file.write(batch.position, batch.data)
            file.sync()
            file.close()
