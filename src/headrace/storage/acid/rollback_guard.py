"""Detects that LMDB shows an older state than it once had.

LMDB has two meta pages and no checksum on either: where the newer is damaged it uses the older
without a word. Each transaction therefore counts itself, and the count is written to a file next
to the environment once the transaction is durable. That file may lag, after a power cut for
instance, but is ahead only if the environment has lost a transaction.
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
    """0 where none was written down yet."""
    value = transaction.get(_LAST_ID, db=database)
    return 0 if value is None else _unpack(schema.checked_payload("commits", _LAST_ID, value))


def _unpack(payload: bytes) -> int:
    count: int = _COUNT.unpack(payload)[0]
    return count


class RollbackGuard:
    """The file beside the environment of the shard in `directory`."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._file = disk.open(f"{directory}/{FILE}", create=True)
        self._directory = directory

    def check(self, count: int) -> None:
        """Raises StoredBytesDamaged where the environment has more commits than it shows."""
        recorded = self._read()
        if recorded > count:
            where = f"commit {recorded}: it shows the state after commit {count}"
            raise StoredBytesDamaged(f"{self._directory}/data.mdb", where)

    def _read(self) -> int:
        """0 where it says nothing: a new file, or one that is damaged itself."""
        value = self._file.read(0, self._file.size())
        try:
            return _unpack(schema.checked_payload(FILE, _KEY, value)) if value else 0
        except (StoredBytesDamaged, struct.error):
            return 0

    def write(self, count: int) -> None:
        """Not synced: it may lag, and must not cost what a commit costs."""
        self._file.write(0, schema.with_checksum(_KEY, _COUNT.pack(count)))

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()
