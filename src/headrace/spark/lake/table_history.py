"""Whether a lake table still has what a query has committed to it.

A table that was rolled back, restored from a backup or made anew takes the next batch like any
other: the numbers of batches in it only say which of them came last. After each commit the driver
therefore notes which table it was and which version it had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyiceberg.table import Table

GONE = "is not there any more"
_ANOTHER = "was deleted and created again"


@dataclass(frozen=True)
class TableMark:
    """A table after a commit: its own id, its version (in Iceberg a snapshot), the batch."""

    table: str
    version: int
    batch: int


def mark_of_delta(table: DeltaTable, batch: int) -> TableMark:
    return TableMark(str(table.metadata().id), table.version(), batch)


def lost_of_delta(table: DeltaTable, mark: TableMark, last_batch: int) -> str | None:
    """What became of the commit at `mark`, if it is not in the table."""
    if str(table.metadata().id) != mark.table:
        return _ANOTHER
    later = table.version() - mark.version
    if later < 0 or last_batch < mark.batch:
        return f"is at version {table.version()}, which is older"
    # A restore is a commit of its own, and leaves the numbers of batches as they are.
    for commit in table.history(later) if later else ():
        if commit.get("operation") == "RESTORE" and int(commit["version"]) > mark.version:
            return f"was restored to an earlier version in version {commit['version']}"
    return None


def mark_of_iceberg(table: Table, batch: int) -> TableMark:
    snapshot = table.current_snapshot()
    return TableMark(str(table.metadata.table_uuid), snapshot.snapshot_id if snapshot else 0, batch)


def lost_of_iceberg(table: Table, mark: TableMark, last_batch: int) -> str | None:
    if str(table.metadata.table_uuid) != mark.table:
        return _ANOTHER
    if last_batch < mark.batch:
        return f"has it up to batch {last_batch}"
    snapshot = table.current_snapshot()
    if snapshot is None:
        return "is empty" if mark.version else None
    # A rollback leaves the snapshots behind it in the metadata. One that is not there has expired.
    if table.snapshot_by_id(mark.version) is None:
        return None
    while snapshot is not None and snapshot.snapshot_id != mark.version:
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    return None if snapshot is not None else "was rolled back to an earlier snapshot"
