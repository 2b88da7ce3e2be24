"""Moving everything from one storage to another, through a file: export and import.

Both go through the interface that every mode has, so any durable mode can be moved to any other.
Streams keep their ids: ETags stay good, and so do the links of subscriptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from headrace.errors import HeadraceError, Overloaded, StoredBytesDamaged, StreamSetAside
from headrace.limits import Limits
from headrace.protocol.offsets import Position
from headrace.protocol.stream import Appended, StreamState
from headrace.storage.acid.acid_storage import AcidStorage, shard_count_of
from headrace.storage.base import (
    Adopted,
    Created,
    Failed,
    Log,
    Recovered,
    Storage,
    ignore,
    reason_of,
)
from headrace.storage.blobs import Blobs
from headrace.storage.disk import RealDisk
from headrace.storage.export_file import ExportReader, ExportUnusable, Summary, write_export
from headrace.storage.file.file_storage import FileStorage
from headrace.storage.file.frames import (
    AdoptFrame,
    AppendFrame,
    BlobFrame,
    CreateFrame,
    DocumentsFrame,
    Frame,
    documents_frame,
    frame_of,
)
from headrace.storage.file.replay import OutOfOrder, apply
from headrace.storage.records import new_state
from headrace.storage.tiered_log import own_start

WINDOW_BYTES: Final = 256 * 1024
DOCUMENTS_PER_FRAME: Final = 1000
UNSETTLED_BYTES_MAX: Final = 8 * 1024 * 1024
FRAME_BYTES: Final = 256  # what a frame takes in memory besides its data
_PATIENCE_SECS: Final = 0.02

Progress = Callable[[Summary, int], None]
"""How much there is, and how many bytes of data have been moved."""


def open_existing(directory: Path, loop: asyncio.AbstractEventLoop) -> Storage | None:
    """The storage of a data directory, whatever its mode; None where there is none."""
    disk = RealDisk(directory)
    if disk.list("acid"):
        return AcidStorage(directory, shard_count_of(disk), loop)
    if disk.list("journal"):
        return FileStorage(disk, Limits(), loop, sync=True)
    return None


# -- export ------------------------------------------------------------------------------------


async def export_directory(directory: Path, target: Path, progress: Progress) -> Summary | None:
    """Write what `directory` holds to `target`; None if it is not a data directory."""
    storage = open_existing(directory, asyncio.get_running_loop())
    if storage is None:
        return None
    try:
        storage.start(ignore, ignore)
        streams = sorted(storage.recover(), key=lambda found: found.state.id)
        for left_out in storage.unrecovered:
            # An export that leaves a stream out would be taken for all there is.
            raise StreamSetAside(left_out.name, reason_of(left_out.error))
        documents = storage.take_documents()
        data_bytes = sum(one.state.tail.bytes - _first(one.state).bytes for one in streams)
        last_id = max(storage.last_id, max((one.state.id for one in streams), default=0))
        summary = Summary(len(streams), data_bytes, len(documents), last_id)
        snapshots = _blob_frames(streams, storage.blobs)
        rest = _all_frames(streams, documents, lambda moved: progress(summary, moved))
        found = chain(snapshots, rest)
        await asyncio.to_thread(write_export, target, summary, found)
        return summary
    finally:
        storage.close()


def _first(state: StreamState) -> Position:
    """Where the bytes that a stream itself keeps begin."""
    return max(own_start(state), state.retained_from)


def _blob_frames(streams: Iterable[Recovered], blobs: Blobs) -> Iterator[Frame]:
    """The snapshots, each once: forks share that of their source."""
    snapshots = (one.state.snapshot for one in streams if not one.state.deleted)
    by_id = {found.blob_id: found for found in snapshots if found is not None}
    for blob_id, snapshot in sorted(by_id.items()):
        size = snapshot.size_bytes
        yield BlobFrame(blob_id, blobs.read(blob_id, size, 0, size))


def _all_frames(
    streams: Iterable[Recovered], documents: dict[str, bytes], moved: Callable[[int], None]
) -> Iterator[Frame]:
    total = 0
    for stream in streams:
        for frame in _stream_frames(stream):
            yield frame
            if isinstance(frame, AppendFrame):
                total += len(frame.data)
                moved(total)
    names = sorted(documents)
    for begin in range(0, len(names), DOCUMENTS_PER_FRAME):
        part = names[begin : begin + DOCUMENTS_PER_FRAME]
        yield documents_frame({name: documents[name] for name in part})


def _stream_frames(stream: Recovered) -> Iterator[Frame]:
    """Created where its bytes begin, filled, and then made what it is in everything else."""
    state = stream.state
    position = _first(state)
    # At its first byte, which need not be 0: what was trimmed is not exported, and offsets stay.
    nothing = Appended(position, position, b"", (), False, None, None)
    yield frame_of(state, Created(state, nothing))
    while position != state.tail:
        found = stream.log.read(position, state.tail, WINDOW_BYTES)
        if callable(found):
            found = found()
        if found is None or found.end == position:
            raise StoredBytesDamaged(f"the stream {state.name!r}", str(position))
        lengths = tuple(found.lengths)
        change = Appended(position, found.end, found.data, lengths, False, None, None)
        yield frame_of(state, change)
        position = found.end
    # Producers, closure and times come last and whole, so the appends above carry none of them.
    yield frame_of(state, Adopted(state))


# -- import ------------------------------------------------------------------------------------


async def import_directory(
    source: Path, directory: Path, shard_count: int | None, progress: Progress
) -> Summary:
    """Make a data directory of an export: acid with so many shards, or one of the file modes."""
    with ExportReader(source) as reader:
        loop = asyncio.get_running_loop()
        if shard_count is not None:
            storage: Storage = AcidStorage(directory, shard_count, loop)
        else:
            storage = FileStorage(RealDisk(directory), Limits(), loop, sync=True)
        try:
            await _import(reader, source, storage, progress)
        finally:
            storage.close()
        return reader.summary


async def _import(reader: ExportReader, source: Path, storage: Storage, progress: Progress) -> None:
    storage.start(ignore, ignore)
    found = list(storage.recover())
    assert not found, "an import makes its directory"
    storage.reserve_ids(reader.summary.last_id)
    importer = _Importer(storage, source)
    for frame in reader.frames():
        importer.take(frame)
        if importer.unsettled_bytes > UNSETTLED_BYTES_MAX:
            await importer.when_durable()
            progress(reader.summary, importer.data_bytes)
    await importer.when_durable()
    progress(reader.summary, importer.data_bytes)


class _Importer:
    def __init__(self, storage: Storage, source: Path) -> None:
        self._storage = storage
        self._source = source
        self._limits = Limits()
        self._streams: dict[int, tuple[StreamState, Log]] = {}
        self._touched: set[int] = set()
        self.unsettled_bytes = 0
        self.data_bytes = 0

    def take(self, frame: Frame) -> None:
        self.unsettled_bytes += FRAME_BYTES
        if isinstance(frame, DocumentsFrame):
            self._storage.put_documents(frame.documents)
        elif isinstance(frame, BlobFrame):
            self._storage.blobs.write(frame.blob_id, frame.data)
        elif isinstance(frame, CreateFrame):
            self._create(frame)
        elif isinstance(frame, AppendFrame):
            self._append(frame)
        elif isinstance(frame, AdoptFrame):
            state, log = self._find(frame.stream_id)
            if state.tail != frame.head.tail:
                raise ExportUnusable(
                    self._source, f"{state.name!r} ends at {state.tail}, not at its recorded tail"
                )
            apply(state, frame, self._limits)
            self._storage.commit(log, Adopted(state), None)
        else:
            raise ExportUnusable(self._source, "it holds a record that exports never contain")

    def _find(self, stream_id: int) -> tuple[StreamState, Log]:
        found = self._streams.get(stream_id)
        if found is None:
            raise ExportUnusable(self._source, f"stream {stream_id} is used but not created")
        self._touched.add(stream_id)
        return found

    def _create(self, frame: CreateFrame) -> None:
        # Without the snapshot that a fork inherits: what is adopted in the end has the right one.
        state = new_state(frame.stream_id, frame.stream)
        change = frame.initial.change()
        state.tail = change.start
        fork = state.config.fork
        source = self._find(fork.source_id)[1] if fork is not None else None
        log = self._storage.new_log(state, source)
        self._streams[state.id] = state, log
        self._touched.add(state.id)
        apply(state, frame.initial, self._limits)
        self._storage.commit(log, Created(state, change), None)

    def _append(self, frame: AppendFrame) -> None:
        state, log = self._find(frame.stream_id)
        try:
            change = apply(state, frame, self._limits)
        except OutOfOrder as gap:
            raise ExportUnusable(
                self._source, f"bytes of {state.name!r} are missing: {gap}"
            ) from None
        assert change is not None, "an append adds something"
        self._storage.commit(log, change, None)
        self.unsettled_bytes += len(change.data)
        self.data_bytes += len(change.data)

    async def when_durable(self) -> None:
        """Wait until everything so far is durable, and there is room for more."""
        for stream_id in self._touched:
            log = self._streams[stream_id][1]
            await _called(partial(self._storage.when_durable, log))
        self._touched.clear()
        await _called(self._storage.when_documents_durable)
        self.unsettled_bytes = 0
        self._storage.tick()
        while (refusal := self._storage.refusal) is not None:
            if not isinstance(refusal, Overloaded):
                raise refusal
            # What is in memory goes to files in the background.
            await asyncio.sleep(_PATIENCE_SECS)
            self._storage.tick()


async def _called(when_durable: Callable[[Callable[[], None], Failed], None]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def failed(error: HeadraceError) -> None:
        future.set_exception(error)

    when_durable(lambda: future.set_result(None), failed)
    await future
