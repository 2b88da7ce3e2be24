"""The report of `headrace verify`, and the checks that all durable modes share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import NamedTuple

from headrace.errors import StoredBytesDamaged, StoredBytesUnreadable
from headrace.protocol.stream import Snapshot, StreamState
from headrace.storage.blobs import DiskBlobs
from headrace.storage.blobs import path as blob_path
from headrace.storage.disk import Disk


class Report(NamedTuple):
    """`findings` are sentences, each naming a file and a place in it."""

    findings: list[str]
    streams: int
    data_bytes: int


def reason_of(error: OSError) -> str:
    return f"{error.filename or 'a file'}: {error.strerror or error}"


def unreadable_file(error: OSError) -> str:
    return f"A file cannot be read: {reason_of(error)}."


def live_snapshot(state: StreamState) -> Snapshot | None:
    """What must be readable: the snapshot of a deleted stream may be gone."""
    return None if state.deleted else state.snapshot


def check_snapshots(disk: Disk, snapshots: Iterable[Snapshot | None]) -> Iterator[str]:
    by_id = {found.blob_id: found for found in snapshots if found is not None}
    if not by_id:
        return
    blobs = DiskBlobs(disk, sync=False)
    for blob_id, snapshot in sorted(by_id.items()):
        size = snapshot.size_bytes
        try:
            data = blobs.read(blob_id, size, 0, size)
        except StoredBytesDamaged as damage:
            yield damage.detail
            continue
        except OSError as error:
            translate_lmdb_errors = error.strerror or str(error)
            yield StoredBytesUnreadable(blob_path(blob_id), translate_lmdb_errors).detail
            continue
        if sha256(data).digest() != snapshot.digest:
            yield StoredBytesDamaged(blob_path(blob_id), "0").detail
