"""Checkpoints: the frames of full segments, moved into packs, stream files and the catalog.

Theory of operation. A checkpoint is a function of full segments and the catalog, never of the
engine's memory, so after a crash in the middle recovery replays the same segments and the next
checkpoint does the same work again. The order makes that safe:

    1. packs and stream files are written behind what the catalog counts, and synced
    2. the catalog gets the new records and, last and atomically, the LSN that is applied now
    3. only then are segments recycled, and files of deleted streams removed or punched

A crash before step 2 leaves bytes that no record counts, and the next checkpoint overwrites them.
A crash before step 3 leaves files and segments that no one needs.

Small streams share a pack, written by one checkpoint: three files for each of 100,000 streams
would cost as many opens and syncs. A stream gets files of its own when it has much in packs, and
its parts are merged when they are many (pack_allocator). A pack with less than half of its bytes
alive is rewritten, and removed by the checkpoint after, since readers may still have it open.

Frames are indexed by stream first, and streams are then taken one at a time: restored together
they would need more memory than the server has for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from headrace.limits import Limits
from headrace.storage.disk import Disk, suppress_transient
from headrace.storage.file import atomic_file, pack_format, stream_files
from headrace.storage.file.catalog import Catalog
from headrace.storage.file.catalog_entries import CatalogEntry, DocumentEntry, entry_of, note_sizes
from headrace.storage.file.frame_index import FrameIndex
from headrace.storage.file.frames import BlobFrame, CreateFrame, DocumentsFrame, encode_frame
from headrace.storage.file.pack_allocator import MessageRun, PackAllocator
from headrace.storage.file.replay import created_state
from headrace.storage.file.stream_changes import StreamChanges
from headrace.storage.file.stream_files import (
    NO_FILES,
    Reclaimable,
    Sizes,
    StreamFileReader,
    StreamFileWriter,
)
from headrace.storage.file.throttle import Throttle

SET_ASIDE: Final = "set-aside"
_THROTTLED_FROM: Final = 100  # frames of a stream; fewer are applied without a pause
SYNC_EACH_MAX = 64  # files; with more of them, one sync of the file system is cheaper

LookUp = Callable[[int], CatalogEntry]
Flushed = dict[int, tuple[int, Sizes]]
"""For each stream id: the byte up to which it is in files and packs, and their sizes."""


class Checkpointer:
    """Makes one checkpoint after the other."""

    def __init__(
        self, disk: Disk, catalog: Catalog, limits: Limits, throttle: Throttle, *, sync: bool
    ) -> None:
        self._disk = disk
        self._catalog = catalog
        self._limits = limits
        self._throttle = throttle
        self._sync = sync
        self._allocator = self._new_allocator()
        self.set_aside: frozenset[int] = frozenset()
        """Streams that could not be recovered: their frames may make no sense here either."""
        self._is_unfinished = False
        # What earlier checkpoints could not free for lack of room or of a descriptor.
        self._gone: list[int] = []
        self._reclaimable: list[tuple[int, Reclaimable]] = []

    def _new_allocator(self) -> PackAllocator:
        return PackAllocator(self._disk, self._catalog, self._throttle, sync=self._sync)

    def run(self, numbered: Iterable[tuple[int, bytes]], last_id: int = 0) -> Flushed:
        """Move the frames of these batch bodies, each given with the number of its first frame.

        `last_id` is an id up to which all are known to be used. Raises transient disk errors with
        the segments unchanged: the whole run is then repeated.
        """
        if self._is_unfinished:
            # The attempt before this one met a full disk. Its additions to the catalog were never
            # committed, and the allocator has counted parts that no record refers to.
            self._catalog.discard(self._throttle)
            self._allocator = self._new_allocator()
        self._is_unfinished = True
        self._allocator.begin()
        # Frames up to `applied_lsn` are in files already: a crash after the commit and before the
        # segments were recycled leaves them in the journal.
        index = FrameIndex(self._catalog.current.applied_lsn)
        for first_lsn, body in self._throttle.each(numbered):
            index.add(first_lsn, body)
        writer = _StreamFlusher(
            self._disk, self._allocator, sync=self._sync, each=len(index) <= SYNC_EACH_MAX
        )
        last_id = max(last_id, index.last_id)
        with self._catalog.lookup(len(index)) as look_up:
            rewrite = self._owners_in_sparse_packs(look_up)
            # They get their turn even if the journal has nothing new for them: a pack empties only
            # once every stream with a live part in it is rewritten.
            for stream_id in rewrite:
                index.include(stream_id)
            for stream_id in self._throttle.each(index.streams()):
                last_id = max(last_id, stream_id)
                try:
                    stream = self._change(stream_id, index, look_up)
                except Exception:
                    # A stream that recovery set aside may fail here alike. Any other failure is a
                    # defect, and stops the storage before a segment is lost to it.
                    if stream_id not in self.set_aside:
                        raise
                    self._keep_frames(stream_id, index)
                    continue
                last_id = max(last_id, stream.last_id)
                writer.write(stream, rewrite=stream_id in rewrite)
                self._catalog.add(stream.entry)
        # Step 1 of the order above ends here, step 2 with `commit`.
        writer.sync()
        for name, value in index.documents.items():
            self._catalog.add(DocumentEntry(name, value))
        self._catalog.commit(index.applied_lsn, last_id, self._throttle)
        # The catalog counts the new bytes from here on. Nothing below may fail the checkpoint: what
        # finds no descriptor or no room stays in `_gone` and `_reclaimable` for the next one.
        self._allocator.committed()
        self._is_unfinished = False
        self._gone += writer.gone
        self._reclaimable += writer.reclaimable
        with suppress_transient():
            self._reclaim_space()
        return writer.flushed

    def _keep_frames(self, stream_id: int, index: FrameIndex) -> None:
        """Copy frames that cannot be applied to `set-aside/`, before their segments are recycled.

        They are all that is left of the changes of a stream that a later version may recover.
        """
        encoded = [encode_frame(index.frame_at(place)) for place in index.places_of(stream_id)]
        body = b"".join(one if isinstance(one, bytes) else b"".join(one) for one in encoded)
        self._disk.make_directory(SET_ASIDE)
        name = f"{SET_ASIDE}/{stream_id:016x}-{self._catalog.current.applied_lsn:016d}"
        atomic_file.replace(self._disk, name, body, sync=self._sync)
        if self._sync:
            self._disk.sync_directory("")

    def _reclaim_space(self) -> None:
        """Free the space of files and blocks that the catalog no longer counts."""
        for _ in self._throttle.each(range(len(self._gone))):
            stream_files.remove(self._disk, self._gone[-1])
            self._gone.pop()
        for _ in self._throttle.each(range(len(self._reclaimable))):
            stream_files.reclaim(self._disk, *self._reclaimable[-1])
            self._reclaimable.pop()

    def _owners_in_sparse_packs(self, look_up: LookUp) -> set[int]:
        """The streams to move out of a pack that has little live data."""
        found: set[int] = set()
        for number in self._allocator.sparse():
            for stream_id in self._throttle.each(self._allocator.owners(number)):
                # A pack lists every stream that ever had a part in it; most have moved on.
                if self._catalog.has(stream_id):
                    parts = pack_format.decode_parts(look_up(stream_id).packed)
                    if any(part.pack == number for part in parts):
                        found.add(stream_id)
        return found

    def _change(self, stream_id: int, index: FrameIndex, look_up: LookUp) -> StreamChanges:
        """The stream's record before, with all its frames applied."""
        places: Sequence[int] = index.places_of(stream_id)
        stream: StreamChanges | None = None
        if self._catalog.has(stream_id):
            stream = StreamChanges(look_up(stream_id), self._limits)
        throttled = self._throttle.each(places) if len(places) > _THROTTLED_FROM else places
        for place in throttled:
            frame = index.frame_at(place)
            if isinstance(frame, CreateFrame):
                stream = self._created(frame, stream)
            else:
                assert stream is not None, "a stream begins with its creation"
                assert not isinstance(frame, DocumentsFrame | BlobFrame), "these have no stream"
                stream.apply(frame)
        assert stream is not None, "a stream that is listed has frames or a record"
        return stream

    def _created(self, frame: CreateFrame, before: StreamChanges | None) -> StreamChanges:
        """A new stream, perhaps with the id of a removed one.

        Before the catalog kept `last_id`, a server whose clock had been set back reused the ids of
        deleted streams. The journals of such servers are still read.
        """
        if before is not None:
            assert before.is_gone, "an id is not given twice at a time"
            self._allocator.free(pack_format.decode_parts(before.sizes.packed))
        stream = StreamChanges(entry_of(created_state(frame), NO_FILES), self._limits)
        stream.apply(frame.initial)
        return stream


class _StreamFlusher:
    """Writes streams to packs and files, and syncs them together at the end."""

    def __init__(self, disk: Disk, allocator: PackAllocator, *, sync: bool, each: bool) -> None:
        self._disk = disk
        self._allocator = allocator
        self._sync = sync
        self._each = each
        self._folders: set[str] = set()
        self.flushed: Flushed = {}
        self.gone: list[int] = []
        self.reclaimable: list[tuple[int, Reclaimable]] = []

    def write(self, stream: StreamChanges, *, rewrite: bool) -> None:
        """Write what is new of a stream, with `rewrite` also its parts; completes its record."""
        new = stream.take_run()
        entry, sizes = stream.entry, stream.sizes
        if stream.is_gone:
            # A record without a head says that the stream is deleted. Its files go after the
            # commit: until then a crash brings the old record back, which counts them.
            self._allocator.free(pack_format.decode_parts(sizes.packed))
            self.gone.append(entry.id)
            stream.entry = CatalogEntry(entry.id, None)
            return
        assert entry.head is not None, "a stream that exists has a head"
        packed = sizes.packed
        # Whole parts below the first stored position go; one that straddles it stays whole.
        if packed and entry.head.retained_from[1]:
            unneeded, packed = pack_format.split_parts(packed, entry.head.retained_from[1])
            self._allocator.free(unneeded)
        own: MessageRun | None = None
        if new is not None or rewrite:
            packed, own = self._allocator.put(entry.id, packed, new, rewrite=rewrite)
        if packed is not sizes.packed:
            sizes = Sizes(sizes.blocks, sizes.lengths_bytes, sizes.first_block, packed)
        if own is not None:
            sizes = self._write_files(entry, sizes, own)
        sizes = self._exclude_reclaimable(entry, sizes)
        note_sizes(entry, sizes)
        self.flushed[entry.id] = (entry.head.tail[1], sizes)

    def _write_files(self, entry: CatalogEntry, sizes: Sizes, run: MessageRun) -> Sizes:
        writer = StreamFileWriter(self._disk, entry.id, entry.base_bytes, sizes)
        try:
            writer.add(*run)
            # With many files, one sync of the file system at the end is cheaper: see SYNC_EACH_MAX.
            if self._sync and self._each:
                writer.sync()
        finally:
            writer.close()
        self._folders.add(stream_files.folder(entry.id))
        return writer.sizes

    def _exclude_reclaimable(self, entry: CatalogEntry, sizes: Sizes) -> Sizes:
        """The sizes without the reclaimable front of a stream's files."""
        assert entry.head is not None, "a stream that exists has a head"
        kept_bytes, base_bytes = entry.head.retained_from[1], entry.base_bytes
        if kept_bytes <= base_bytes or sizes.first_block == sizes.blocks:
            return sizes
        reader = StreamFileReader(self._disk, entry.id, base_bytes, sizes)
        try:
            reclaimable = reader.reclaimable_before(kept_bytes)
        finally:
            reader.close()
        if reclaimable.blocks == sizes.first_block:
            return sizes
        # Punched out after the commit: until then a crash brings back the record that counts these
        # blocks.
        self.reclaimable.append((entry.id, reclaimable))
        return sizes._replace(first_block=reclaimable.blocks)

    def sync(self) -> None:
        """Return when all that was written is durable, directory entries of new files included."""
        self._allocator.finish()
        if self._sync and self._folders:
            # A new file is found again only if its folder's entry is durable, and a new folder only
            # if its entry in `streams` is.
            if self._each:
                for folder in self._folders:
                    self._disk.sync_directory(folder)
                self._disk.sync_directory(stream_files.DIRECTORY)
            else:
                self._disk.sync_everything()
