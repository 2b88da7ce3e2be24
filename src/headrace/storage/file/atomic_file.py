"""Small files that are replaced atomically: a checksum, and the payload."""

from __future__ import annotations

import struct

import google_crc32c

from headrace.errors import StoredBytesDamaged
from headrace.storage.disk import Disk

_CHECKSUM = struct.Struct("<I")


def read(disk: Disk, path: str) -> bytes | None:
    """What the file says, or None where there is none; raises StoredBytesDamaged."""
    directory, _, name = path.rpartition("/")
    if name not in disk.list(directory):
        return None
    file = disk.open(path)
    sealed = file.read(0, file.size())
    file.close()
    payload = sealed[_CHECKSUM.size :]
    if sealed[: _CHECKSUM.size] != _checksum(payload):
        raise StoredBytesDamaged(path, "0")
    return payload


def replace(disk: Disk, path: str, payload: bytes, *, sync: bool = True) -> None:
    """Take the place of the file of that name, whole or not at all."""
    file = disk.open(f"{path}.new", create=True)
    try:
        file.truncate(0)
        file.write(0, _checksum(payload) + payload)
        if sync:
            file.sync()
    finally:
        file.close()
    disk.rename(f"{path}.new", path)
    if sync:
        disk.sync_directory(path.rpartition("/")[0])


def _checksum(payload: bytes) -> bytes:
    return _CHECKSUM.pack(google_crc32c.value(payload))
