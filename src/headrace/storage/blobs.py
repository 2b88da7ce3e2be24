"""Snapshot blobs: bytes by id, written once, durable before anything names them.

    snapshots/XX/ID    the blob's bytes, then four bytes of CRC32C for every 64 KiB of them

A file is written and synced by a worker, so that no append waits for it; the change that publishes
it comes after. A file that nothing names is what a crash left behind, and goes at the next start.
All methods but `__init__` may run off the event loop.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Iterator
from hashlib import sha256
from typing import Final, Protocol

import google_crc32c

from headrace.errors import InsufficientStorage, StoredBytesDamaged
from headrace.storage.disk import Disk

logger = logging.getLogger(__name__)

DIRECTORY: Final = "snapshots"
PIECE_BYTES: Final = 64 * 1024
_CRC_BYTES: Final = 4


class Blobs(Protocol):
    can_rot: bool
    """Whether reading a blob again can find anything else than what was written."""

    def write(self, blob_id: int, data: bytes) -> bytes:
        """Store a blob; it is durable when this returns. Returns its SHA-256."""
        ...

    def read(self, blob_id: int, size: int, start: int, count: int) -> bytes:
        """`count` bytes from `start`, which is a multiple of PIECE_BYTES, of a blob of `size`."""
        ...

    def remove(self, blob_id: int) -> None: ...

    def remove_unreferenced(self, blob_ids: set[int]) -> None:
        """At the start: everything else is left over."""
        ...


class MemoryBlobs:
    can_rot = False

    def __init__(self) -> None:
        self._blobs: dict[int, bytes] = {}

    def write(self, blob_id: int, data: bytes) -> bytes:
        self._blobs[blob_id] = data
        return sha256(data).digest()

    def read(self, blob_id: int, size: int, start: int, count: int) -> bytes:
        return self._blobs[blob_id][start : start + count]

    def remove(self, blob_id: int) -> None:
        del self._blobs[blob_id]

    def remove_unreferenced(self, blob_ids: set[int]) -> None:
        """Nothing outlives the process."""


class DiskBlobs:
    can_rot = True

    def __init__(self, disk: Disk, *, sync: bool) -> None:
        self._disk = disk
        self._sync = sync
        disk.make_directory(DIRECTORY)

    def write(self, blob_id: int, data: bytes) -> bytes:
        name = path(blob_id)
        self._disk.make_directory(folder(blob_id))
        file = self._disk.open(name, create=True)
        try:
            file.write(0, data)
            file.write(len(data), _checksums(data))
            if self._sync:
                file.sync()
        except OSError as error:
            self._disk.remove(name)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise InsufficientStorage(0, len(data)) from None
            raise
        finally:
            file.close()
        if self._sync:
            self._disk.sync_directory(folder(blob_id))
            self._disk.sync_directory(DIRECTORY)
        return sha256(data).digest()

    def read(self, blob_id: int, size: int, start: int, count: int) -> bytes:
        assert start % PIECE_BYTES == 0, "pieces are checked whole"
        count = min(count, size - start)
        whole = min(-(-count // PIECE_BYTES) * PIECE_BYTES, size - start)
        first = start // PIECE_BYTES
        try:
            file = self._disk.open(path(blob_id))
        except FileNotFoundError:
            raise StoredBytesDamaged(path(blob_id), "0") from None
        try:
            data = file.read(start, whole)
            sums = file.read(size + first * _CRC_BYTES, -(-whole // PIECE_BYTES) * _CRC_BYTES)
        finally:
            file.close()
        if len(data) != whole or sums != _checksums(data):
            raise StoredBytesDamaged(path(blob_id), str(start))
        return data[:count]

    def remove(self, blob_id: int) -> None:
        self._disk.remove(path(blob_id))

    def remove_unreferenced(self, blob_ids: set[int]) -> None:
        for place in self._files():
            blob_id = _id_of(place)
            if blob_id is None:
                logger.warning("%s is not a snapshot and is ignored", place)
            elif blob_id not in blob_ids:
                self._remove_leftover(place)

    def _files(self) -> Iterator[str]:
        for directory in self._disk.list(DIRECTORY):
            place = f"{DIRECTORY}/{directory}"
            try:
                names = self._disk.list(place)
            except NotADirectoryError:
                yield place
                continue
            yield from (f"{place}/{name}" for name in names)

    def _remove_leftover(self, place: str) -> None:
        try:
            self._disk.remove(place)
        except OSError as error:
            # It costs room and nothing else: no reason not to start.
            logger.warning("%s is left over and cannot be removed: %s", place, error)


def folder(blob_id: int) -> str:
    return f"{DIRECTORY}/{blob_id % 256:02x}"


def path(blob_id: int) -> str:
    return f"{folder(blob_id)}/{blob_id:016x}"


def _id_of(place: str) -> int | None:
    """The blob that a file holds; None if it is none of ours."""
    try:
        blob_id = int(place.rpartition("/")[2], 16)
    except ValueError:
        return None
    return blob_id if blob_id >= 0 and path(blob_id) == place else None


def _checksums(data: bytes) -> bytes:
    """One checksum for each piece."""
    view = memoryview(data)
    sums = (
        google_crc32c.value(bytes(view[at : at + PIECE_BYTES]))
        for at in range(0, len(data), PIECE_BYTES)
    )
    return b"".join(struct.pack("<I", crc) for crc in sums)
