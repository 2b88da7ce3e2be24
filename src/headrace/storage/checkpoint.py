"""Checkpoints: what the journal says, carried over into stream files and catalog.

A function of full segments and the catalog, never of the engine's memory: recovery after a crash
in the middle runs the same code over the same input. Order: packs and stream files, sync, catalog,
and only then may segments be used again and files of deleted streams go.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from headrace.limits import Limits
from headrace.protocol.offsets import Position
from headrace.protocol.stream import StreamState, apply_append
from headrace.storage import packs, stream_files
from headrace.storage.catalog import (
    Catalog,
    CatalogEntry,
    DocumentEntry,
    entry_of,
    sizes_of,
    state_of,
)
from headrace.storage.disk import Disk
from headrace.storage.frames import (
    AdoptFrame,
    AppendFrame,
    BlobFrame,
    CreateFrame,
    DocumentsFrame,
    Frame,
    RemoveFrame,
    apply_frame,
    created_state,
)
from headrace.storage.pace import Pace
from headrace.storage.packing import Packing, Run
from headrace.storage.stream_files import NO_FILES, Sizes, StreamReader, StreamWriter, Void
from headrace.storage.tailed import base_of

SYNC_EACH_MAX = 64  # with more files than this, one sync of the file system is cheaper


class _Stream:
    """A stream that a checkpoint changes, and what it adds to its files."""

    __slots__ = ("again", "data", "gone", "lengths", "sizes", "start", "state")

    def __init__(self, state: StreamState, sizes: Sizes) -> None:
        self.state = state
        self.sizes = sizes
        self.start: Position | None = None
        self.lengths: list[int] = []
        self.data: list[bytes] = []
        self.gone = False
        self.again = False  # what it has in packs is to be written again


class Checkpointer:
    """Knows the streams that a checkpoint changes while it runs; the rest is in the catalog."""

    def __init__(
        self, disk: Disk, catalog: Catalog, limits: Limits, pace: Pace, *, sync: bool
    ) -> None:
        self._disk = disk
        self._catalog = catalog
        self._limits = limits
        self._pace = pace
        self._sync = sync
        self._packing = Packing(disk, catalog, pace, sync=sync)
        self._changed: dict[int, _Stream] = {}
        self._documents: dict[str, bytes | None] = {}

    def run(self, numbered: Iterable[tuple[int, Frame]]) -> dict[int, tuple[Position, Sizes]]:
        """Carry frames over; where each stream's files then end, and their sizes."""
        applied_lsn = self._catalog.current.applied_lsn
        self._packing.begin()
        with self._catalog.lookup() as self._look_up:
            for lsn, frame in self._pace.through(numbered):
                if lsn > applied_lsn:
                    self._apply(frame)
                    applied_lsn = lsn
            self._empty_wasteful_packs()
        dirty = list(self._changed.values())
        self._write(dirty)
        voids = [
            (stream.state.id, self._find_void(stream))
            for stream in self._pace.through(dirty)
            if not stream.gone
        ]
        documents = [DocumentEntry(name, value) for name, value in self._documents.items()]
        entries: chain[CatalogEntry | DocumentEntry] = chain(map(self._entry, dirty), documents)
        self._catalog.commit(entries, applied_lsn, self._pace)
        self._packing.committed()
        self._documents.clear()
        self._changed.clear()
        flushed = {}
        for stream in self._pace.through(dirty):
            if stream.gone:
                stream_files.remove(self._disk, stream.state.id)
            else:
                flushed[stream.state.id] = (stream.state.tail, stream.sizes)
        for stream_id, void in self._pace.through(voids):
            if void is not None:
                stream_files.give_back(self._disk, stream_id, void)
        return flushed

    def _find_void(self, stream: _Stream) -> Void | None:
        """What a stream's files hold that nobody needs, if that is more than was known."""
        state, sizes = stream.state, stream.sizes
        base_bytes = base_of(state).bytes
        if state.kept.bytes <= base_bytes or sizes.first_block == sizes.blocks:
            return None
        reader = StreamReader(self._disk, state.id, base_bytes, sizes)
        try:
            void = reader.void_before(state.kept.bytes)
        finally:
            reader.close()
        if void.blocks == sizes.first_block:
            return None
        stream.sizes = sizes._replace(first_block=void.blocks)
        return void

    def _find(self, stream_id: int) -> _Stream:
        """A stream that is about to change, as the frames so far have left it."""
        stream = self._changed.get(stream_id)
        if stream is None:
            entry = self._look_up(stream_id)
            stream = self._changed[stream_id] = _Stream(state_of(entry), sizes_of(entry))
        return stream

    def _apply(self, frame: Frame) -> None:
        if isinstance(frame, CreateFrame):
            self._changed[frame.stream_id] = _Stream(created_state(frame), NO_FILES)
            self._append(frame.initial)
        elif isinstance(frame, AppendFrame):
            self._append(frame)
        elif isinstance(frame, RemoveFrame):
            stream = self._find(frame.stream_id)
            stream.state.deleted = True
            stream.gone = frame.whole
        elif isinstance(frame, DocumentsFrame):
            self._documents.update(frame.documents)
        elif isinstance(frame, AdoptFrame):
            frame.restore(self._find(frame.stream_id).state)
        else:
            assert not isinstance(frame, BlobFrame), "blobs stand in exports only"
            apply_frame(self._find(frame.stream_id).state, frame)

    def _append(self, frame: AppendFrame) -> None:
        stream = self._find(frame.stream_id)
        change = frame.change()
        apply_append(stream.state, change, frame.now_ms, self._limits)
        if change.data:
            if not stream.data:
                stream.start = change.start
            stream.lengths += change.lengths
            stream.data.append(change.data)

    def _empty_wasteful_packs(self) -> None:
        for number in self._packing.wasteful():
            for stream_id in self._pace.through(self._packing.owners(number)):
                if self._has_part_in(number, stream_id):
                    self._find(stream_id).again = True

    def _has_part_in(self, number: int, stream_id: int) -> bool:
        stream = self._changed.get(stream_id)
        if stream is not None:
            packed = stream.sizes.packed
        elif self._catalog.has(stream_id):
            packed = self._look_up(stream_id).packed
        else:
            return False
        return any(part.pack == number for part in packs.decode_parts(packed))

    def _write(self, streams: list[_Stream]) -> None:
        """What is new goes into packs, and into the files of streams that have much."""
        own: list[_Stream] = []
        each = self._sync and len(streams) <= SYNC_EACH_MAX
        for stream in self._pace.through(streams):
            self._let_parts_go(stream)
            if (stream.data or stream.again) and not stream.gone:
                run = self._put(stream)
                if run is not None:
                    self._write_files(stream, run, sync=each)
                    own.append(stream)
        self._packing.finish()
        if self._sync and own:
            if each:
                for directory in {stream_files.folder(stream.state.id) for stream in own}:
                    self._disk.sync_directory(directory)
                self._disk.sync_directory(stream_files.DIRECTORY)
            else:
                self._disk.sync_everything()

    def _let_parts_go(self, stream: _Stream) -> None:
        """Of what a stream has in packs, whatever nobody needs any more."""
        kept_bytes = stream.state.tail.bytes if stream.gone else stream.state.kept.bytes
        unneeded, packed = packs.split_parts(stream.sizes.packed, kept_bytes)
        if unneeded:
            self._packing.let_go(unneeded)
            stream.sizes = stream.sizes._replace(packed=packed)

    def _put(self, stream: _Stream) -> Run | None:
        """Into a pack; returns what is to go into files instead."""
        new = None
        if stream.data:
            assert stream.start is not None, "data begins somewhere"
            new = Run(stream.start, stream.lengths, b"".join(stream.data))
        sizes = stream.sizes
        packed, run = self._packing.put(stream.state.id, sizes.packed, new, again=stream.again)
        stream.sizes = sizes._replace(packed=packed)
        return run

    def _write_files(self, stream: _Stream, run: Run, *, sync: bool) -> None:
        state = stream.state
        writer = StreamWriter(self._disk, state.id, base_of(state).bytes, stream.sizes)
        writer.add(*run)
        stream.sizes = writer.sizes
        if sync:
            writer.sync()
        writer.close()

    def _entry(self, stream: _Stream) -> CatalogEntry:
        if stream.gone:
            return CatalogEntry(stream.state.id, None)
        return entry_of(stream.state, stream.sizes)
