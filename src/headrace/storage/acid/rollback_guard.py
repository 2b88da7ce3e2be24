"""Detects that LMDB shows an older state than it once had.

LMDB has two meta pages, written in turn, and no checksum on either. If the newer one is damaged it
silently uses the older: the last transaction is gone, although it was durable and acknowledged.
So every transaction counts itself in the database, and the count is written to a file next to the
environment once the transaction is durable:

    file against database     cause                                         verdict
    file < database           a crash or power cut before the file write    fine
    file = database                                                         fine
    file > database           the database shows an older transaction       damage, refuse to start
    file empty or damaged     new, or only this file is damaged             unknown, taken for fine

The file is not synced with each commit: lagging is harmless, a second sync per commit is not. It
is synced at every start. So a rollback goes unnoticed only if a power cut took the file's last
writes and one of the meta pages was damaged before the next start.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from headrace.errors import StoredBytesDamaged
from headrace.storage.acid import schema
from headrace.storage.disk import Disk

FILE: Final = "commits"
_KEY: Final = b"count"
_LAST_ID: Final = b"last id"
_COUNT = struct.Struct("<Q")


def put(transaction: Any, database: Any, count: int) -> None:
    transaction.put(_KEY, schema.with_checksum(_KEY, _COUNT.pack(count)), db=database)


def get(transaction: Any, database: Any) -> int:
    """0 where none was counted yet."""
    value = transaction.get(_KEY, db=database)
    return 0 if value is None else _unpack(schema.checked_payload("commits", _KEY, value))


def put_last_id(transaction: Any, database: Any, last_id: int) -> None:
    transaction.put(_LAST_ID, schema.with_checksum(_LAST_ID, _COUNT.pack(last_id)), db=database)


def get_last_id(transaction: Any, database: Any) -> int:
    """0 if none was stored yet."""
    value = transaction.get(_LAST_ID, db=database)
    return 0 if value is None else _unpack(schema.checked_payload("commits", _LAST_ID, value))


def _unpack(payload: bytes) -> int:
    count: int = _COUNT.unpack(payload)[0]
    return count


class RollbackGuard:
    """The file next to the environment of the shard in `directory`."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._file = disk.open(f"{directory}/{FILE}", create=True)
        self._directory = directory

    def check(self, count: int) -> None:
        """Raises StoredBytesDamaged if the environment once had more commits than it shows."""
        # Only "more" is proof. A file that lags is what a crash between the commit and `write`
        # leaves, and what a power cut leaves of writes that were never synced.
        recorded = self._read()
        if recorded > count:
            where = f"commit {recorded}: it shows the state after commit {count}"
            raise StoredBytesDamaged(f"{self._directory}/data.mdb", where)

    def _read(self) -> int:
        """0 where it says nothing: a new file, or one that is damaged itself."""
        value = self._file.read(0, self._file.size())
        try:
            # A damaged count must not stop a start: it would refuse sound data for the sake of a
            # file that holds none. The check is off until the next `write`.
            return _unpack(schema.checked_payload(FILE, _KEY, value)) if value else 0
        except (StoredBytesDamaged, struct.error):
            return 0

    def write(self, count: int) -> None:
        """Not synced: it may lag, and must not cost what a commit costs."""
        # Twelve bytes in place. If they tear, the checksum fails, and the file says nothing.
        self._file.write(0, schema.with_checksum(_KEY, _COUNT.pack(count)))

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()
