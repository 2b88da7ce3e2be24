"""`headrace verify` for the file modes: the catalog, every stream's blocks, and the journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from headrace.errors import HeadraceError
from headrace.limits import Limits
from headrace.protocol.stream import StreamState
from headrace.storage.disk import Disk
from headrace.storage.file.catalog import Catalog
from headrace.storage.file.catalog_entries import CatalogEntry, sizes_of, state_of
from headrace.storage.file.frames import (
    AppendFrame,
    BlobFrame,
    CreateFrame,
    DocumentsFrame,
    Frame,
    RemoveFrame,
)
from headrace.storage.file.journal import Journal
from headrace.storage.file.replay import OutOfOrder, apply, created_state
from headrace.storage.file.stream_files import Sizes, StreamFileReader
from headrace.storage.tiered_log import own_start
from headrace.storage.verify_report import (
    Report,
    check_snapshots,
    live_snapshot,
    reason_of,
    unreadable_file,
)

LIMITS = Limits()


def verify_files(disk: Disk) -> Report:
    """The catalog, every block of every stream, and the journal that is not in them yet."""
    findings: list[str] = []
    entries: list[CatalogEntry] = []
    states: dict[int, StreamState] = {}
    data_bytes = 0
    try:
        catalog = Catalog(disk)
        entries = list(catalog.load().streams.values())
        states = {entry.id: state_of(entry) for entry in entries}
        for _, frame in Journal(disk).scan(catalog.current.applied_lsn):
            data_bytes += _replay(frame, states)
    except HeadraceError as damage:
        findings.append(damage.detail)
    except OSError as error:
        findings.append(unreadable_file(error))
    for entry in entries:
        state = state_of(entry)
        findings += _check_stream(disk, state, sizes_of(entry))
        data_bytes += state.tail.bytes - max(own_start(state).bytes, state.retained_from.bytes)
    try:
        findings += check_snapshots(disk, map(live_snapshot, states.values()))
    except OSError as error:
        findings.append(unreadable_file(error))
    return Report(findings, len(states), data_bytes)


def _replay(frame: Frame, states: dict[int, StreamState]) -> int:
    """Apply a frame to the streams there are; the data bytes it adds.

    Frames of a stream that is set aside may make no sense: the check of the start reports those.
    """
    if isinstance(frame, DocumentsFrame | BlobFrame):
        return 0
    if isinstance(frame, CreateFrame):
        states[frame.stream_id] = created_state(frame)
        frame = frame.initial
    state = states.get(frame.stream_id)
    if state is not None:
        with suppress(OutOfOrder):
            apply(state, frame, LIMITS)
    if isinstance(frame, RemoveFrame) and frame.whole:
        states.pop(frame.stream_id, None)
    return len(frame.data) if isinstance(frame, AppendFrame) else 0


def _check_stream(disk: Disk, state: StreamState, sizes: Sizes) -> Iterator[str]:
    reader = StreamFileReader(disk, state.id, own_start(state).bytes, sizes)
    try:
        for damage in reader.check(state.tail):
            yield damage.detail
    except FileNotFoundError as missing:
        yield f"A file of the stream {state.name!r} is missing: {missing.filename}."
    except OSError as error:
        yield f"A file of the stream {state.name!r} cannot be read: {reason_of(error)}."
    finally:
        reader.close()
