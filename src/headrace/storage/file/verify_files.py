"""`headrace verify` for the file modes: the catalog, every stream's blocks, and the journal."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.errors import HeadraceError
from headrace.protocol.stream import Snapshot, StreamState
from headrace.storage.disk import Disk
from headrace.storage.file.catalog import Catalog
from headrace.storage.file.catalog_entries import CatalogEntry, sizes_of, state_of
from headrace.storage.file.frames import (
    AppendFrame,
    CreateFrame,
    Frame,
    PublishFrame,
    RemoveFrame,
)
from headrace.storage.file.journal import Journal
from headrace.storage.file.stream_files import Sizes, StreamReader
from headrace.storage.records import snapshot_of
from headrace.storage.tiered_log import own_start
from headrace.storage.verify_report import (
    Report,
    check_snapshots,
    live_snapshot,
    reason_of,
    unreadable_file,
)


def verify_files(disk: Disk) -> Report:
    """The catalog, every block of every stream, and the journal that is not in them yet."""
    findings: list[str] = []
    entries: list[CatalogEntry] = []
    streams: set[int] = set()
    data_bytes = 0
    snapshots: dict[int, Snapshot | None] = {}
    try:
        catalog = Catalog(disk)
        entries = list(catalog.load().streams.values())
        streams = {entry.id for entry in entries}
        snapshots = {entry.id: live_snapshot(state_of(entry)) for entry in entries}
        for _, frame in Journal(disk).scan(catalog.current.applied_lsn):
            data_bytes += _count(frame, streams)
            _note_snapshot(frame, snapshots)
    except HeadraceError as damage:
        findings.append(damage.detail)
    except OSError as error:
        findings.append(unreadable_file(error))
    for entry in entries:
        state = state_of(entry)
        findings += _check_stream(disk, state, sizes_of(entry))
        data_bytes += state.tail.bytes - max(own_start(state).bytes, state.retained_from.bytes)
    try:
        findings += check_snapshots(disk, snapshots.values())
    except OSError as error:
        findings.append(unreadable_file(error))
    return Report(findings, len(streams), data_bytes)


def _note_snapshot(frame: Frame, snapshots: dict[int, Snapshot | None]) -> None:
    """Which snapshot a stream has after `frame`."""
    if isinstance(frame, CreateFrame | PublishFrame):
        snapshots[frame.stream_id] = snapshot_of(frame.snapshot)
    elif isinstance(frame, RemoveFrame):
        snapshots.pop(frame.stream_id, None)


def _count(frame: Frame, streams: set[int]) -> int:
    """Which streams there are after `frame`; the data bytes it adds."""
    if isinstance(frame, CreateFrame):
        streams.add(frame.stream_id)
        return len(frame.initial.data)
    if isinstance(frame, RemoveFrame) and frame.whole:
        streams.discard(frame.stream_id)
    return len(frame.data) if isinstance(frame, AppendFrame) else 0


def _check_stream(disk: Disk, state: StreamState, sizes: Sizes) -> Iterator[str]:
    reader = StreamReader(disk, state.id, own_start(state).bytes, sizes)
    try:
        for damage in reader.check(state.tail):
            yield damage.detail
    except FileNotFoundError as missing:
        yield f"A file of the stream {state.name!r} is missing: {missing.filename}."
    except OSError as error:
        yield f"A file of the stream {state.name!r} cannot be read: {reason_of(error)}."
    finally:
        reader.close()
