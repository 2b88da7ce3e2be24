"""Where a checkpoint puts what it has for a stream: into a pack, or into files of its own.

Knows how much of each pack still counts: streams are deleted and trimmed, and parts are written
again together. A pack of which nothing counts is removed by the checkpoint after the one that
left it so, since readers may still be at it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from headrace.errors import InsufficientStorage, StoredBytesDamaged
from headrace.protocol.offsets import Position
from headrace.storage.disk import Disk, DiskFile
from headrace.storage.file import pack_format
from headrace.storage.file.catalog import Catalog
from headrace.storage.file.pack_format import PackWriter, Part
from headrace.storage.file.throttle import Throttle

OWN_FILES_BYTES_MIN = 32 * 1024  # a stream that has so much in packs gets files
PARTS_MAX = 16  # a stream's parts, before they are written again as one
STABLE_AFTER_PACKS = 2 * PARTS_MAX  # packs: streams that are written to have left one by then
REWRITTEN_BYTES_MAX = 256 * 1024 * 1024  # by one checkpoint
_OPEN_MAX = 64


class MessageRun(NamedTuple):
    """Messages of one stream that follow one another."""

    start: Position
    lengths: list[int]
    data: bytes


class PackAllocator:
    """Of each checkpoint: `begin`, `put` for every stream, `finish`, and then `committed`."""

    def __init__(self, disk: Disk, catalog: Catalog, throttle: Throttle, *, sync: bool) -> None:
        self._disk = disk
        self._catalog = catalog
        self._throttle = throttle
        self._sync = sync
        self._sizes: dict[int, int] | None = None
        self._live_bytes: dict[int, int] = {}
        self._freed: list[Part] = []  # by the checkpoint that runs
        self._dead: list[int] = []
        self._rewriting: list[int] = []
        self._stuck: set[int] = set()  # what counts in them could not be read
        self._open: dict[int, DiskFile] = {}
        self._budget_bytes = 0
        self._next = 1

    def begin(self) -> None:
        """A checkpoint begins."""
        if self._sizes is None:
            self._sizes = self._scan_packs()
        for number in self._dead:
            self._disk.remove(pack_format.path(number))
        self._dead, self._freed, self._rewriting = [], [], []
        self._writer = PackWriter(self._disk, self._next, sync=self._sync)
        has_room = self._disk.refusal(REWRITTEN_BYTES_MAX) is None
        self._budget_bytes = REWRITTEN_BYTES_MAX if has_room else 0

    def _scan_packs(self) -> dict[int, int]:
        """The packs that an earlier server left, and what counts in them."""
        names = self._disk.list(pack_format.DIRECTORY)
        found = {int(name) for name in names if pack_format.is_name(name)}
        if not found:
            return {}
        self._next = max(found) + 1
        for entry in self._throttle.each(self._catalog.load(self._throttle).streams.values()):
            for part in pack_format.decode_parts(entry.packed):
                self._live_bytes[part.pack] = self._live_bytes.get(part.pack, 0) + part.size
        self._dead = sorted(found - self._live_bytes.keys())
        return {number: self._size_of(number) for number in sorted(found & self._live_bytes.keys())}

    def _size_of(self, number: int) -> int:
        file = self._disk.open(pack_format.path(number))
        try:
            return file.size()
        finally:
            file.close()

    def put(
        self, stream_id: int, packed: bytes, run: MessageRun | None, *, rewrite: bool
    ) -> tuple[bytes, MessageRun | None]:
        """Add what is new to what a stream has in packs; `again`: write that again, too.

        Returns its parts and, when they have become much, what is to go into its own files.
        """
        before_bytes = run.start.bytes - pack_format.start_of(packed).bytes if run and packed else 0
        is_much = run is not None and before_bytes + len(run.data) >= OWN_FILES_BYTES_MIN
        is_due = packed and (is_much or self._has_many_parts(packed, stream_id))
        if (packed and rewrite) or (is_due and self._spend_budget(before_bytes)):
            parts = pack_format.decode_parts(packed)
            gathered = self._merge(stream_id, parts, run)
            if gathered is not None:
                self.free(parts)
                packed, run = b"", gathered
        if run is None or (is_much and not packed):
            return packed, run
        return self._writer.add(packed, stream_id, *run), None

    def _has_many_parts(self, packed: bytes, stream_id: int) -> bool:
        """Not the same number for all streams, which would fall due together."""
        count = pack_format.count_parts(packed)
        half = PARTS_MAX // 2
        return count >= PARTS_MAX or (
            count >= half and (stream_id + self._writer.number) % half == 0
        )

    def _spend_budget(self, size: int) -> bool:
        """Whether this checkpoint may write so much again."""
        self._budget_bytes -= size
        return self._budget_bytes >= 0

    def _merge(
        self, stream_id: int, parts: list[Part], run: MessageRun | None
    ) -> MessageRun | None:
        """A stream's parts and what is new, in one; None where a part cannot be read.

        Then they stay where they are: whoever reads the stream is told so, and others go on.
        """
        lengths: list[int] = []
        data: list[bytes] = []
        try:
            for part in parts:
                found, content = pack_format.read_part(self._file(part.pack), stream_id, part)
                lengths += found
                data.append(content)
        except (StoredBytesDamaged, OSError):
            return None
        if run is not None:
            lengths += run.lengths
            data.append(run.data)
        return MessageRun(parts[0].start, lengths, b"".join(data))

    def _file(self, number: int) -> DiskFile:
        file = self._open.get(number)
        if file is None:
            if len(self._open) >= _OPEN_MAX:
                self._close_files()
            file = self._open[number] = self._disk.open(pack_format.path(number))
        return file

    def _close_files(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def free(self, parts: Collection[Part]) -> None:
        """Nobody needs these parts once the checkpoint that runs is done."""
        self._freed += parts

    def sparse(self) -> Iterator[int]:
        """The packs to be written again: those of which less than half counts.

        Where there is room for them, not before they have settled.
        """
        assert self._sizes is not None, "a checkpoint has begun"
        refusal = self._disk.refusal(REWRITTEN_BYTES_MAX)
        room_bytes, before = REWRITTEN_BYTES_MAX, self._next - STABLE_AFTER_PACKS
        if isinstance(refusal, InsufficientStorage):
            # Of the reserve, too: on a disk that is full this is how deletes give space back.
            room_bytes, before = min(refusal.free_bytes // 2, room_bytes), self._next
        for number, size in self._sizes.items():
            if number >= before or number in self._stuck:
                continue
            live_bytes = self._live_bytes[number]
            if 2 * live_bytes < size and live_bytes <= room_bytes:
                room_bytes -= live_bytes
                self._rewriting.append(number)
                yield number

    def owners(self, number: int) -> Iterator[int]:
        """The ids of streams that have a part in a pack, or had one."""
        try:
            yield from pack_format.owners(self._file(number))
        except OSError:
            self._stuck.add(number)

    def finish(self) -> None:
        """Return when everything put is durable."""
        self._close_files()
        self._writer.finish()

    def committed(self) -> None:
        """The catalog has what this checkpoint made of the packs."""
        assert self._sizes is not None, "a checkpoint has begun"
        for part in self._freed:
            if part.pack in self._sizes:  # and was not lost
                self._live_bytes[part.pack] -= part.size
        self._sizes |= self._writer.sizes
        self._live_bytes |= self._writer.sizes
        self._next = self._writer.number
        self._stuck.update(number for number in self._rewriting if self._live_bytes[number])
        self._dead = [number for number in self._sizes if not self._live_bytes[number]]
        for number in self._dead:
            del self._live_bytes[number], self._sizes[number]
