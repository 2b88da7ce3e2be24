"""Checkpoints: what the journal says, carried over into packs, stream files and catalog.

A function of full segments and the catalog, never of the engine's memory: recovery after a crash
in the middle runs the same code over the same input. Order: packs and stream files, sync, catalog,
and only then may segments be used again and files of deleted streams go.

Frames are sorted by stream first, and streams are then taken one after the other: with many of
them, everything they are at once would be more than the server has in memory of them, and work
for the collector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from headrace.limits import Limits
from headrace.storage.disk import Disk, suppress_transient
from headrace.storage.file import atomic_file, pack_format, stream_files
from headrace.storage.file.catalog import Catalog
from headrace.storage.file.catalog_entries import CatalogEntry, DocumentEntry, entry_of, note_sizes
from headrace.storage.file.frame_index import Sorter
from headrace.storage.file.frames import CreateFrame, created_state, encode_frame
from headrace.storage.file.pack_allocator import Packing, Run
from headrace.storage.file.stream_changes import ChangedStream
from headrace.storage.file.stream_files import NO_FILES, Sizes, StreamReader, StreamWriter, Void
from headrace.storage.file.throttle import Pace

SET_ASIDE: Final = "set-aside"
_PACED_FROM: Final = 100  # a stream with fewer frames is carried over without a rest
SYNC_EACH_MAX = 64  # with more files than this, one sync of the file system is cheaper

LookUp = Callable[[int], CatalogEntry]
Flushed = dict[int, tuple[int, Sizes]]
"""The byte at which what is in files and packs of each stream then ends, and what is there."""


class Checkpointer:
    """Makes one checkpoint after the other."""

    def __init__(
        self, disk: Disk, catalog: Catalog, limits: Limits, pace: Pace, *, sync: bool
    ) -> None:
        self._disk = disk
        self._catalog = catalog
        self._limits = limits
        self._pace = pace
        self._sync = sync
        self._packing = self._new_packing()
        self.set_aside: frozenset[int] = frozenset()
        """Streams that could not be recovered: their frames may make no sense here either."""
        self._is_unfinished = False
        # What earlier checkpoints had to leave behind, for want of room or of a descriptor.
        self._gone: list[int] = []
        self._voids: list[tuple[int, Void]] = []

    def _new_packing(self) -> Packing:
        return Packing(self._disk, self._catalog, self._pace, sync=self._sync)

    def run(self, numbered: Iterable[tuple[int, bytes]], last_id: int = 0) -> Flushed:
        """Carry the frames of these bodies over; the first of each has the number before it.

        `last_id` is an id up to which all are known to be used.
        """
        if self._is_unfinished:
            # An attempt before this one met a full disk: what it noted counts for nothing.
            self._catalog.discard(self._pace)
            self._packing = self._new_packing()
        self._is_unfinished = True
        self._packing.begin()
        sorter = Sorter(self._catalog.current.applied_lsn)
        for first_lsn, body in self._pace.through(numbered):
            sorter.add(first_lsn, body)
        writer = _Writer(
            self._disk, self._packing, sync=self._sync, each=len(sorter) <= SYNC_EACH_MAX
        )
        last_id = max(last_id, sorter.last_id)
        with self._catalog.lookup(len(sorter)) as look_up:
            again = self._owners_in_wasteful_packs(look_up)
            for stream_id in again:
                sorter.include(stream_id)
            for stream_id in self._pace.through(sorter.streams()):
                last_id = max(last_id, stream_id)
                try:
                    stream = self._change(stream_id, sorter, look_up)
                except Exception:
                    if stream_id not in self.set_aside:
                        raise
                    self._keep_frames(stream_id, sorter)
                    continue
                last_id = max(last_id, stream.last_id)
                writer.write(stream, again=stream_id in again)
                self._catalog.add(stream.entry)
        writer.secure()
        for name, value in sorter.documents.items():
            self._catalog.add(DocumentEntry(name, value))
        self._catalog.commit(sorter.applied_lsn, last_id, self._pace)
        self._packing.committed()
        self._is_unfinished = False
        self._gone += writer.gone
        self._voids += writer.voids
        with suppress_transient():
            self._give_back()
        return writer.flushed

    def _keep_frames(self, stream_id: int, sorter: Sorter) -> None:
        """Frames that cannot be applied are kept as they are, before their segments go."""
        encoded = [encode_frame(sorter.frame_at(place)) for place in sorter.places_of(stream_id)]
        body = b"".join(one if isinstance(one, bytes) else b"".join(one) for one in encoded)
        self._disk.make_directory(SET_ASIDE)
        name = f"{SET_ASIDE}/{stream_id:016x}-{self._catalog.current.applied_lsn:016d}"
        atomic_file.replace(self._disk, name, body, sync=self._sync)
        if self._sync:
            self._disk.sync_directory("")

    def _give_back(self) -> None:
        """The catalog no longer counts these: their space may go."""
        for _ in self._pace.through(range(len(self._gone))):
            stream_files.remove(self._disk, self._gone[-1])
            self._gone.pop()
        for _ in self._pace.through(range(len(self._voids))):
            stream_files.give_back(self._disk, *self._voids[-1])
            self._voids.pop()

    def _owners_in_wasteful_packs(self, look_up: LookUp) -> set[int]:
        """The streams that have to leave a pack of which little counts."""
        found: set[int] = set()
        for number in self._packing.wasteful():
            for stream_id in self._pace.through(self._packing.owners(number)):
                if self._catalog.has(stream_id):
                    parts = pack_format.decode_parts(look_up(stream_id).packed)
                    if any(part.pack == number for part in parts):
                        found.add(stream_id)
        return found

    def _change(self, stream_id: int, sorter: Sorter, look_up: LookUp) -> ChangedStream:
        """A stream as its frames leave it."""
        places: Sequence[int] = sorter.places_of(stream_id)
        stream: ChangedStream | None = None
        if self._catalog.has(stream_id):
            stream = ChangedStream(look_up(stream_id), self._limits)
        paced = self._pace.through(places) if len(places) > _PACED_FROM else places
        for place in paced:
            frame = sorter.frame_at(place)
            if isinstance(frame, CreateFrame):
                stream = self._created(frame, stream)
            else:
                assert stream is not None, "a stream begins with its creation"
                stream.apply(frame)
        assert stream is not None, "a stream that is listed has frames or a record"
        return stream

    def _created(self, frame: CreateFrame, before: ChangedStream | None) -> ChangedStream:
        """A new stream, perhaps with the id of one that is gone.

        Before the catalog kept `last_id`, a server that was started with an earlier clock gave the
        ids of deleted streams again; such a journal is carried over like any other.
        """
        if before is not None:
            assert before.is_gone, "an id is not given twice at a time"
            self._packing.let_go(pack_format.decode_parts(before.sizes.packed))
        stream = ChangedStream(entry_of(created_state(frame), NO_FILES), self._limits)
        stream.apply(frame.initial)
        return stream


class _Writer:
    """Puts what streams have where readers will look for it."""

    def __init__(self, disk: Disk, packing: Packing, *, sync: bool, each: bool) -> None:
        self._disk = disk
        self._packing = packing
        self._sync = sync
        self._each = each
        self._folders: set[str] = set()
        self.flushed: Flushed = {}
        self.gone: list[int] = []
        self.voids: list[tuple[int, Void]] = []

    def write(self, stream: ChangedStream, *, again: bool) -> None:
        """What is new of a stream, or `again` what it has in packs, too; completes its record."""
        new = stream.take_run()
        entry, sizes = stream.entry, stream.sizes
        if stream.is_gone:
            self._packing.let_go(pack_format.decode_parts(sizes.packed))
            self.gone.append(entry.id)
            stream.entry = CatalogEntry(entry.id, None)
            return
        assert entry.head is not None, "a stream that exists stands somewhere"
        packed = sizes.packed
        if packed and entry.head.kept[1]:
            unneeded, packed = pack_format.split_parts(packed, entry.head.kept[1])
            self._packing.let_go(unneeded)
        own: Run | None = None
        if new is not None or again:
            packed, own = self._packing.put(entry.id, packed, new, again=again)
        if packed is not sizes.packed:
            sizes = Sizes(sizes.blocks, sizes.lengths_bytes, sizes.first_block, packed)
        if own is not None:
            sizes = self._write_files(entry, sizes, own)
        sizes = self._without_void(entry, sizes)
        note_sizes(entry, sizes)
        self.flushed[entry.id] = (entry.head.tail[1], sizes)

    def _write_files(self, entry: CatalogEntry, sizes: Sizes, run: Run) -> Sizes:
        writer = StreamWriter(self._disk, entry.id, entry.base_bytes, sizes)
        try:
            writer.add(*run)
            if self._sync and self._each:
                writer.sync()
        finally:
            writer.close()
        self._folders.add(stream_files.folder(entry.id))
        return writer.sizes

    def _without_void(self, entry: CatalogEntry, sizes: Sizes) -> Sizes:
        """The sizes without what nobody needs at the front of a stream's files."""
        assert entry.head is not None, "a stream that exists stands somewhere"
        kept_bytes, base_bytes = entry.head.kept[1], entry.base_bytes
        if kept_bytes <= base_bytes or sizes.first_block == sizes.blocks:
            return sizes
        reader = StreamReader(self._disk, entry.id, base_bytes, sizes)
        try:
            void = reader.void_before(kept_bytes)
        finally:
            reader.close()
        if void.blocks == sizes.first_block:
            return sizes
        self.voids.append((entry.id, void))
        return sizes._replace(first_block=void.blocks)

    def secure(self) -> None:
        """Return when everything written is durable."""
        self._packing.finish()
        if self._sync and self._folders:
            if self._each:
                for folder in self._folders:
                    self._disk.sync_directory(folder)
                self._disk.sync_directory(stream_files.DIRECTORY)
            else:
                self._disk.sync_everything()
