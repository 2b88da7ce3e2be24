"""Where a checkpoint puts what it has for a stream: into a pack, or into files of its own.

Theory of operation. A pack is a file with messages of many streams, written by one checkpoint and
never changed. What one checkpoint adds to one stream is a part: pack, position and size, listed in
the stream's catalog record. A stream moves through these places:

    new             one part in the checkpoint's pack
    has parts       one more part per checkpoint that has something for it
    many parts      merged: read from their packs and written as one part, with what is new
    32 KiB          promoted: its parts and what is new are appended to files of its own. Files cost
                    three opens and syncs per checkpoint and a part next to nothing, so what comes
                    later is a part again, behind the files

"Many" is 16 parts, or from 8 on whenever id + pack number is divisible by 8: streams that are
written at the same rate would otherwise fall due in one checkpoint. Merges and promotions of one
checkpoint read and write 256 MiB at most, and none if the disk has no room for that; what is due
then simply gets another part.

Space. `_live_bytes` counts for each pack the parts that catalog records refer to. Merging,
promoting, trimming and deleting free parts. A pack with less than half of its bytes alive is
rewritten: every stream with a part in it is merged by the next checkpoint (`sparse`, `owners`), if
the pack is 32 packs old. Younger ones often empty themselves: a stream that is written to has been
merged before that. On a full disk the age does not matter, because that is how deletes free space.

A pack without live bytes is removed by the checkpoint after the one that emptied it. Until the
catalog is committed the old records refer to it, a crash may bring them back, and reads that began
before the commit may still have it open.

Crash safety. `put` only writes the new pack; the old parts stay readable. Counts change in
`committed`, after the catalog. A checkpoint that fails before has a new allocator for the next
attempt, which counts again from the catalog, and packs that no record refers to are removed.

Damage. A part that cannot be read is left where it is: its stream answers the read with an error,
others are not affected, and its pack is not chosen for a rewrite again (`_stuck`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from headrace.errors import InsufficientStorage, StoredBytesDamaged
from headrace.protocol.offsets import Position
from headrace.storage.disk import Disk, DiskFile
from headrace.storage.file import pack_format
from headrace.storage.file.catalog import Catalog
from headrace.storage.file.pack_format import PackPart, PackWriter
from headrace.storage.file.throttle import Throttle

OWN_FILES_BYTES_MIN = 32 * 1024  # a stream with this much in packs gets files of its own
PARTS_MAX = 16  # parts of a stream before they are merged: a read opens one pack for each
STABLE_AFTER_PACKS = 2 * PARTS_MAX  # packs; active streams have been merged out of older ones
REWRITTEN_BYTES_MAX = 256 * 1024 * 1024  # merged or promoted by one checkpoint
_OPEN_MAX = 64


class MessageRun(NamedTuple):
    """Messages of one stream that follow one another."""

    start: Position
    lengths: list[int]
    data: bytes


class PackAllocator:
    """For each checkpoint: `begin`, `put` for every stream, `finish`, then `committed`."""

    def __init__(self, disk: Disk, catalog: Catalog, throttle: Throttle, *, sync: bool) -> None:
        self._disk = disk
        self._catalog = catalog
        self._throttle = throttle
        self._sync = sync
        # By pack number. `_sizes` is None until the first checkpoint has listed the directory.
        self._sizes: dict[int, int] | None = None
        self._live_bytes: dict[int, int] = {}
        self._freed: list[PackPart] = []  # by the running checkpoint
        self._dead: list[int] = []  # removed by the next checkpoint
        self._rewriting: list[int] = []
        self._stuck: set[int] = set()  # packs with a live part that cannot be read
        self._open: dict[int, DiskFile] = {}
        self._budget_bytes = 0
        self._next = 1

    def begin(self) -> None:
        """A checkpoint begins."""
        if self._sizes is None:
            self._sizes = self._scan_packs()
        for number in self._dead:
            self._disk.remove(pack_format.path(number))
        # A rewrite needs room before it frees any: without it only new data is written.
        self._dead, self._freed, self._rewriting = [], [], []
        self._writer = PackWriter(self._disk, self._next, sync=self._sync)
        has_room = self._disk.refusal(REWRITTEN_BYTES_MAX) is None
        self._budget_bytes = REWRITTEN_BYTES_MAX if has_room else 0

    def _scan_packs(self) -> dict[int, int]:
        """The packs of earlier runs, and their live bytes by the catalog.

        Dead ones include those that a crash left before their catalog records were committed.
        """
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
        """Add what is new of a stream to the pack; with `rewrite` also what it has in other packs.

        Returns its parts and, if it is promoted, what is to go into its own files.
        """
        # What is in packs is contiguous and ends where `run` begins.
        before_bytes = run.start.bytes - pack_format.start_of(packed).bytes if run and packed else 0
        is_much = run is not None and before_bytes + len(run.data) >= OWN_FILES_BYTES_MIN
        is_due = packed and (is_much or self._has_many_parts(packed, stream_id))
        if (packed and rewrite) or (is_due and self._spend_budget(before_bytes)):
            parts = pack_format.decode_parts(packed)
            gathered = self._merge(stream_id, parts, run)
            if gathered is not None:
                self.free(parts)
                packed, run = b"", gathered
        # Not promoted while parts are left: parts come after the files in a stream's order, so what
        # is newer than an unmerged part cannot go into the files.
        if run is None or (is_much and not packed):
            return packed, run
        return self._writer.add(packed, stream_id, *run), None

    def _has_many_parts(self, packed: bytes, stream_id: int) -> bool:
        """Spread over checkpoints: not the same limit for all streams, see the theory above."""
        count = pack_format.count_parts(packed)
        half = PARTS_MAX // 2
        return count >= PARTS_MAX or (
            count >= half and (stream_id + self._writer.number) % half == 0
        )

    def _spend_budget(self, size: int) -> bool:
        """Whether this checkpoint may still rewrite `size` bytes."""
        self._budget_bytes -= size
        return self._budget_bytes >= 0

    def _merge(
        self, stream_id: int, parts: list[PackPart], run: MessageRun | None
    ) -> MessageRun | None:
        """A stream's parts and what is new as one run; None if a part cannot be read.

        The parts then stay where they are, and reads of the stream report the damage.
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

    def free(self, parts: Collection[PackPart]) -> None:
        """These parts are unused once the running checkpoint is committed."""
        self._freed += parts

    def sparse(self) -> Iterator[int]:
        """The packs to rewrite: stable ones with less than half of their bytes alive."""
        assert self._sizes is not None, "a checkpoint has begun"
        refusal = self._disk.refusal(REWRITTEN_BYTES_MAX)
        room_bytes, before = REWRITTEN_BYTES_MAX, self._next - STABLE_AFTER_PACKS
        if isinstance(refusal, InsufficientStorage):
            # From the reserve, and at any age: on a full disk this is how deletes free space.
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
        """The ids of streams that have, or had, a part in a pack. The caller checks which."""
        try:
            yield from pack_format.owners(self._file(number))
        except OSError:
            self._stuck.add(number)

    def finish(self) -> None:
        """Return when everything put is durable."""
        self._close_files()
        self._writer.finish()

    def committed(self) -> None:
        """The catalog has the new records: from here on the old parts are unused."""
        assert self._sizes is not None, "a checkpoint has begun"
        for part in self._freed:
            if part.pack in self._sizes:  # a pack whose file was lost is in no count
                self._live_bytes[part.pack] -= part.size
        self._sizes |= self._writer.sizes
        self._live_bytes |= self._writer.sizes
        self._next = self._writer.number
        # Chosen for a rewrite and still alive: a part in it cannot be read. Without this, every
        # checkpoint would read the whole pack again for nothing.
        self._stuck.update(number for number in self._rewriting if self._live_bytes[number])
        self._dead = [number for number in self._sizes if not self._live_bytes[number]]
        for number in self._dead:
            del self._live_bytes[number], self._sizes[number]
