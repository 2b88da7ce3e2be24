"""Partitions that come to a followed table with rows in them, or go and take their rows along.

Postgres writes no change for such rows, so the feed cannot have them; nor for the truncate of a
partition, where what is published is its root. What a table consists of is noted in
`headrace.partitions`, each partition with the file it is in, and compared now and then. A partition
that was made as one is only noted: its rows come as changes. One that is in another file was
truncated, or rewritten by VACUUM FULL and the like, which cannot be distinguished reliably.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from headrace.postgres.catalog import quoted

SET_UP = """
create table if not exists headrace.partitions (
  slot text not null,
  relation text not null,
  parts jsonb not null,
  primary key (slot, relation)
);
"""

_PARTS = (
    "select coalesce(jsonb_object_agg("
    "c.oid, jsonb_build_array(n.nspname || '.' || c.relname, pg_relation_filenode(c.oid))), '{}')"
    " from pg_partition_tree(%s::regclass) t join pg_class c on c.oid = t.relid"
    " join pg_namespace n on n.oid = c.relnamespace where t.level > 0"
)
# The row of a system column is as old as the table.
_WAS_ATTACHED = (
    "select i.xmin <> a.xmin, i.xmin::text from pg_inherits i join pg_attribute a"
    " on a.attrelid = i.inhrelid and a.attname = 'ctid' where i.inhrelid = %s::int8::oid"
)


class TablePartition(NamedTuple):
    name: str
    file: int | None  # none of its own, or not noted by an earlier version

    @classmethod
    def of(cls, noted: Any) -> TablePartition:
        return cls(noted, None) if isinstance(noted, str) else cls(*noted)


Parts = dict[str, TablePartition]


@dataclass(frozen=True)
class Moved:
    """What came to a table with its rows, what went from it, and what was emptied in place."""

    table: str
    attached: tuple[str, ...]
    detached: tuple[str, ...]
    truncated: tuple[str, ...]

    @property
    def names(self) -> str:
        return ", ".join((*self.attached, *self.detached, *self.truncated))


def note(connection: psycopg.Connection, slot: str, tables: Sequence[str]) -> None:
    """Note the partitions that the tables have now."""
    for table in tables:
        _note(connection, slot, table, _parts(connection, table))


def moved(connection: psycopg.Connection, slot: str, tables: Sequence[str]) -> list[Moved]:
    """What has changed since it was noted; it is noted with this."""
    known = "select relation, parts from headrace.partitions where slot = %s for update"
    noted = {table: _read(parts) for table, parts in connection.execute(known, (slot,))}
    found = []
    for table in tables:
        now = _parts(connection, table)
        before = noted.get(table)
        if before == now:
            continue
        _note(connection, slot, table, now)
        if before is None:
            continue  # a slot of an earlier version
        move = _compared(connection, table, before, now)
        if move.names:
            found.append(move)
    return found


def _compared(connection: psycopg.Connection, table: str, before: Parts, now: Parts) -> Moved:
    fresh = [oid for oid in now if oid not in before]
    attached = tuple(now[oid].name for oid in fresh if _had_rows(connection, oid, now[oid].name))
    detached = tuple(before[oid].name for oid in before if oid not in now)
    truncated = tuple(
        now[oid].name
        for oid in now
        if oid in before and before[oid].file is not None and before[oid].file != now[oid].file
    )
    return Moved(table, attached, detached, truncated)


def _parts(connection: psycopg.Connection, table: str) -> Parts:
    row = connection.execute(_PARTS, (quoted(table),)).fetchone()
    assert row is not None, "an aggregate has one row"
    return _read(row[0])


def _read(parts: dict[str, Any]) -> Parts:
    return {oid: TablePartition.of(part) for oid, part in parts.items()}


def _note(connection: psycopg.Connection, slot: str, table: str, parts: Parts) -> None:
    connection.execute(
        "insert into headrace.partitions values (%s, %s, %s)"
        " on conflict (slot, relation) do update set parts = excluded.parts",
        (slot, table, Jsonb(parts)),
    )


def _had_rows(connection: psycopg.Connection, oid: str, name: str) -> bool:
    """Whether a partition may have had rows when it became one."""
    row = connection.execute(_WAS_ATTACHED, (oid,)).fetchone()
    if row is None:
        return False  # gone again
    was_attached, by = row
    schema, _, table = name.partition(".")
    # Made, filled and attached in one transaction, it looks like one that was made as a partition.
    query = (
        "select 1 from {} limit 1" if was_attached else "select 1 from {} where xmin = {} limit 1"
    )
    return (
        connection.execute(
            sql.SQL(query).format(sql.Identifier(schema, table), sql.Literal(by))
        ).fetchone()
        is not None
    )
