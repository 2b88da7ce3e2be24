"""Partitions that come to a followed table with rows in them, or go and take their rows along.

Postgres writes no change for such rows, so the feed cannot have them. What a table consists of is
noted in `headrace.partitions` and compared now and then. A partition that was made as one is only
noted: its rows come as changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    "select coalesce(jsonb_object_agg(c.oid, n.nspname || '.' || c.relname), '{}')"
    " from pg_partition_tree(%s::regclass) t join pg_class c on c.oid = t.relid"
    " join pg_namespace n on n.oid = c.relnamespace where t.level > 0"
)
# The row of a system column is as old as the table.
_WAS_ATTACHED = (
    "select i.xmin <> a.xmin, i.xmin::text from pg_inherits i join pg_attribute a"
    " on a.attrelid = i.inhrelid and a.attname = 'ctid' where i.inhrelid = %s::int8::oid"
)


@dataclass(frozen=True)
class Moved:
    """What came to a table with its rows, and what went from it."""

    table: str
    attached: tuple[str, ...]
    detached: tuple[str, ...]


def note(connection: psycopg.Connection, slot: str, tables: Sequence[str]) -> None:
    """Note the partitions that the tables have now."""
    for table in tables:
        _note(connection, slot, table, _parts(connection, table))


def moved(connection: psycopg.Connection, slot: str, tables: Sequence[str]) -> list[Moved]:
    """What has changed since it was noted; it is noted with this."""
    known = "select relation, parts from headrace.partitions where slot = %s for update"
    noted: dict[str, dict[str, str]] = dict(connection.execute(known, (slot,)).fetchall())
    found = []
    for table in tables:
        now = _parts(connection, table)
        before = noted.get(table)
        if before == now:
            continue
        _note(connection, slot, table, now)
        if before is None:
            continue  # a slot of an earlier version
        fresh = [oid for oid in now if oid not in before]
        attached = tuple(now[oid] for oid in fresh if _had_rows(connection, oid, now[oid]))
        detached = tuple(before[oid] for oid in before if oid not in now)
        if attached or detached:
            found.append(Moved(table, attached, detached))
    return found


def _parts(connection: psycopg.Connection, table: str) -> dict[str, str]:
    row = connection.execute(_PARTS, (quoted(table),)).fetchone()
    assert row is not None, "an aggregate has one row"
    parts: dict[str, str] = row[0]
    return parts


def _note(connection: psycopg.Connection, slot: str, table: str, parts: dict[str, str]) -> None:
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
