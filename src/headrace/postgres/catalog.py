"""What Postgres's catalog says of tables and types. Asks, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql
from psycopg.postgres import types

from headrace.postgres.pgoutput import Column, Encoding, Relation
from headrace.postgres.slot_names import SlotError
from headrace.postgres.values import Encoder, array_encoder, encoder

_COLUMNS: Final = (
    "select a.attname, a.atttypid::int8, a.atttypmod, coalesce("
    # Without the columns that an index only includes. Of a row without a key, all is the key.
    " a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]), c.relreplident = 'f')"
    " from pg_attribute a left join pg_class c on c.oid = a.attrelid"
    " left join pg_index i on i.indrelid = a.attrelid and"
    "   case when c.relreplident = 'i' then i.indisreplident else i.indisprimary end"
    " where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped"
    " and a.attgenerated = '' order by a.attnum"
)
_TYPE: Final = (
    "select typbasetype::int8, case when typcategory = 'A' and typlen = -1 then typelem else 0 end"
    "::int8, typdelim::text from pg_type where oid = %s"
)


@dataclass(frozen=True)
class _Type:
    """What a type is made of, as far as it decides how its values become JSON."""

    base: int  # of a domain; else 0
    element: int  # of an array; else 0
    delimiter: str


class Types:
    """How the types of one database become JSON, those that users made among them.

    A domain counts as its base type, and an array has elements of the array's own type.
    """

    def __init__(self, connect: Callable[[], psycopg.Connection]) -> None:
        self._connect = connect
        self._known: dict[int, _Type] = {}

    def encoder(self, type_oid: int) -> Encoder:
        if types.get(type_oid) is not None:
            return encoder(type_oid)
        found = self._known.get(type_oid) or self._look_up(type_oid)
        if found is not None and found.base:
            return self.encoder(found.base)
        if found is not None and found.element:
            return array_encoder(self.encoder(found.element), found.delimiter)
        return encoder(type_oid)

    def describe(self, relation: Relation) -> str:
        """The columns of a table as the `value` of a schema event."""
        with self._connect() as connection:
            rows = connection.execute(
                "select format_type(o, m) from unnest(%s::oid[], %s::int[]) with ordinality"
                " as c (o, m, n) order by n",
                (
                    [column.type_oid for column in relation.columns],
                    [column.type_modifier for column in relation.columns],
                ),
            ).fetchall()
        return relation.describe([name for (name,) in rows])

    def _look_up(self, type_oid: int) -> _Type | None:
        with self._connect() as connection:
            row = connection.execute(_TYPE, (type_oid,)).fetchone()
        if row is None:
            return None  # dropped since: its values stay the text that Postgres printed
        return self._known.setdefault(type_oid, _Type(*row))


def describe(connection: psycopg.Connection, table: str, encoding: Encoding = encoder) -> Relation:
    """A table as a pgoutput Relation message would describe it."""
    rows = connection.execute(_COLUMNS, (quoted(table),)).fetchall()
    return Relation.of(table, tuple(Column(*row) for row in rows), encoding)


def primary_key(connection: psycopg.Connection, table: str) -> frozenset[str]:
    rows = connection.execute(
        "select a.attname from pg_index i join pg_attribute a on a.attrelid = i.indrelid"
        " where i.indrelid = %s::regclass and i.indisprimary"
        " and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1])",
        (quoted(table),),
    ).fetchall()
    return frozenset(name for (name,) in rows)


def check_identity(connection: psycopg.Connection, table: str, *, needs_key: bool) -> None:
    """Refuse a table whose updates would begin to fail once it is published."""
    row = connection.execute(
        "select relreplident::text, exists (select 1 from pg_index where indrelid = c.oid and"
        " indisprimary) from pg_class c where oid = to_regclass(%s)",
        (quoted(table),),
    ).fetchone()
    if row is None:
        raise SlotError(f"There is no table {table}.")
    identity, has_primary_key = row
    if identity == "n" or (identity == "d" and not has_primary_key):
        raise SlotError(
            f"{table} has no primary key: once published, its updates and deletes would fail. "
            f"Add one, or run: alter table {table} replica identity full;"
        )
    if needs_key and identity == "f" and not has_primary_key:
        raise SlotError(
            f"{table} has no primary key: rows that are equal in every column would share one "
            "key, and a reader that keeps one row per key would lose all but one. Add a primary "
            'key, leave the table out of tables, or set without_key to "allow" (in Spark: '
            "withoutKey)."
        )


def files(connection: psycopg.Connection, table: str) -> list[tuple[int, int]]:
    """Which file a table is in, those of its partitions included."""
    query = (
        "select relid::oid, pg_relation_filenode(relid) from pg_partition_tree(%s::regclass)"
        " union select %s::regclass::oid, pg_relation_filenode(%s::regclass) order by 1"
    )
    return connection.execute(query, 3 * (quoted(table),)).fetchall()


def exists(connection: psycopg.Connection, table: str) -> bool:
    return connection.execute("select to_regclass(%s)", (table,)).fetchone() != (None,)


def qualified(table: str) -> str:
    parts = table.strip().split(".")
    if len(parts) > 2 or not all(parts):
        raise SlotError(f"{table!r} is not a valid table name: write schema.table.")
    return ".".join(["public", *parts][-2:])


def identifier(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split("."))


def quoted(table: str) -> str:
    return identifier(table).as_string(None)
