"""One stream of the file modes: its end in memory, the rest in files, and both read as one."""

from __future__ import annotations

import sys
from typing import Final

from headrace.errors import HeadraceError, StoredBytesDamaged, StoredBytesUnreadable
from headrace.protocol.offsets import Position
from headrace.protocol.stream import StreamState
from headrace.storage.base import CHECK_BYTES, CheckResult, ColdRead, Range
from headrace.storage.disk import Disk, descriptor_refusal
from headrace.storage.file.stream_files import NO_FILES, Sizes, StreamFileReader
from headrace.storage.tiered_log import TieredLog

HOT_BYTES_MAX: Final = 64 * 1024  # the end of each stream that stays in memory once it is on disk


class FileLog(TieredLog):
    """One stream: what is not yet in its files, and its end, in memory; the rest in files."""

    __slots__ = ("_disk", "flushed_bytes", "sizes")

    def __init__(
        self, disk: Disk, state: StreamState, parent: FileLog | None, sizes: Sizes = NO_FILES
    ) -> None:
        super().__init__(state, parent)
        self._disk = disk
        self.sizes = sizes
        self.flushed_bytes: int = state.tail.bytes

    def flush(self, end_bytes: int, sizes: Sizes) -> None:
        """A checkpoint has everything up to there in files: less has to be in memory."""
        self.flushed_bytes = end_bytes
        self.sizes = sizes
        cold_bytes = end_bytes - self.tail.base.bytes - HOT_BYTES_MAX
        if cold_bytes > 0:
            self.tail.evict(cold_bytes)

    def reader(self, sizes: Sizes) -> StreamFileReader:
        return StreamFileReader(self._disk, self.state.id, self.base.bytes, sizes)

    def cold_read(self, start: Position, limit: Position, bytes_max: int) -> ColdRead:
        sizes = self.sizes

        def read() -> Range | None:
            nonlocal sizes
            while True:
                reader = self.reader(sizes)
                try:
                    return reader.read(start, limit, bytes_max)
                except (StoredBytesDamaged, OSError):
                    # A checkpoint may have put it elsewhere meanwhile.
                    # The loop replaces `sizes` as a whole, never in place, so this thread may
                    # compare it. Unchanged, it is damage; changed, the new places are tried next.
                    if self.sizes is sizes:
                        raise
                    sizes = self.sizes
                finally:
                    reader.close()

        return read


class PartCheck:
    """Some blocks of one stream, read again; `next_block` is where the next part begins."""

    def __init__(self, log: FileLog, first: int) -> None:
        self._reader = log.reader(log.sizes)
        self.next_block = first
        self.damage: list[HeadraceError] = []

    def __call__(self) -> CheckResult:
        """What it finds it keeps: on the loop more is known about what that means."""
        try:
            self.next_block, found = self._reader.check_part(self.next_block, CHECK_BYTES)
        except OSError as error:
            self.next_block = sys.maxsize
            place = str(error.filename or "a file")
            damage = StoredBytesUnreadable(place, error.strerror or str(error))
            # What could not be opened for lack of a descriptor is checked by the next pass.
            found = CheckResult(0, [damage] if descriptor_refusal(error) is None else [])
        finally:
            self._reader.close()
        self.damage = found.damage
        return CheckResult(found.data_bytes, [])
