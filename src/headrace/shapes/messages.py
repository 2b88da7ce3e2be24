"""Changes into log entries, as Electric writes them. Pure.

A change moves a row into the shape, within it or out of it, by whether the old and the new row
belong. An entry is addressed by its transaction's place in the log and its position in that; the
last entry of a transaction says that it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.shapes.definition import Offset
from headrace.shapes.tables import Row, Table, TableSnapshot

Entry = dict[str, Any]


@dataclass(frozen=True)
class RowChange:
    """One change of one row with all its columns, and whether old and new belong to the shape."""

    xid: int
    old: Row | None
    new: Row | None
    old_belongs: bool
    new_belongs: bool


class EntryWriter:
    """Makes the entries of one shape."""

    def __init__(self, table: Table, replica: str) -> None:
        self._table = table
        self._is_full = replica == "full"
        self._relation = [table.schema, table.name]
        self._prefix = f'"{table.schema}"."{table.name}"'

    def key(self, row: Row) -> str:
        parts = (row[name] for name in self._table.keys)
        quoted = ("_" if part is None else '"' + part.replace("/", "//") + '"' for part in parts)
        return f"{self._prefix}/{'/'.join(quoted)}"

    def snapshot(self, row: Row) -> Entry:
        headers = {"operation": "insert", "relation": self._relation}
        return {"key": self.key(row), "value": row, "headers": headers}

    def entries(self, change: RowChange) -> Iterator[Entry]:
        old = change.old if change.old_belongs else None
        new = change.new if change.new_belongs else None
        if old is None and new is not None:
            yield self._entry("insert", self.key(new), self._chosen(new), change)
        elif new is None and old is not None:
            yield self._entry("delete", self.key(old), self._gone(old), change)
        elif old is not None and new is not None:
            yield from self._updated(old, new, change)

    def _updated(self, old: Row, new: Row, change: RowChange) -> Iterator[Entry]:
        before, after = self.key(old), self.key(new)
        if before != after:
            gone = self._entry("delete", before, self._gone(old), change)
            gone["headers"]["key_change_to"] = after
            come = self._entry("insert", after, self._chosen(new), change)
            come["headers"]["key_change_from"] = before
            yield gone
            yield come
            return
        changed = [name for name in self._table.selected if old[name] != new[name]]
        if not changed:
            return
        named = [n for n in self._table.selected if n in changed or n in self._table.keys]
        value = self._chosen(new) if self._is_full else {name: new[name] for name in named}
        entry = self._entry("update", after, value, change)
        if self._is_full:
            entry["old_value"] = {name: old[name] for name in changed}
        yield entry

    def _chosen(self, row: Row) -> Row:
        return {name: row[name] for name in self._table.selected}

    def _gone(self, row: Row) -> Row:
        return self._chosen(row) if self._is_full else {n: row[n] for n in self._table.keys}

    def _entry(self, operation: str, key: str, value: Row, change: RowChange) -> Entry:
        headers = {"operation": operation, "relation": self._relation, "txids": [change.xid]}
        return {"key": key, "value": value, "headers": headers}


def snapshot_facts(snapshot: TableSnapshot) -> dict[str, Any]:
    """What a snapshot had seen, for a reader who knows the transactions of changes."""
    running = [str(xid) for xid in snapshot.running]
    return {"xmin": str(snapshot.xmin), "xmax": str(snapshot.xmax), "xip_list": running}


def snapshot_end(snapshot: TableSnapshot) -> Entry:
    """Behind the rows of a shape."""
    return {"headers": {"control": "snapshot-end", **snapshot_facts(snapshot)}}


class Numbering:
    """Addresses for the entries of one shape, and the mark on the last one of a transaction.

    A transaction comes in parts, and the last part may have nothing for the shape. So one entry
    is always held back until it is known whether another follows.
    """

    def __init__(self) -> None:
        self._position = 1
        self._held: tuple[Offset, Entry] | None = None

    def begin(self) -> None:
        """A transaction begins, perhaps again: what a broken connection left is forgotten.

        Positions start at 1: a reader that has seen everything before a place in the log says so
        with position 0 of it.
        """
        self._position = 1
        self._held = None

    def number(self, lsn: int, entry: Entry) -> Iterator[tuple[Offset, Entry]]:
        entry["headers"] |= {"lsn": str(lsn), "op_position": self._position}
        held, self._held = self._held, ((lsn, self._position), entry)
        self._position += 1
        if held is not None:
            yield held

    def end(self) -> Iterator[tuple[Offset, Entry]]:
        held, self._held = self._held, None
        if held is not None:
            held[1]["headers"]["last"] = True
            yield held


def is_last_of_transaction(entry: Entry) -> bool:
    """Whether a transaction ends with this entry, or it is a row of the snapshot."""
    return "lsn" not in entry["headers"] or entry["headers"].get("last", False)
