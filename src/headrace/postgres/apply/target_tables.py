"""The tables that changes are applied to: what they look like, made and widened where allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from headrace.changes.events import ColumnShape
from headrace.changes.rules import CURRENT, HISTORY, VALID_FROM, qualified
from headrace.postgres.apply.column_texts import ColumnText, Kind

_COLUMNS: Final = """
with recursive base as (  -- a domain is written as what it is a domain of
  select oid as of, oid, typbasetype, typcategory, typelem, typlen, typdelim from pg_type
  where oid in (select atttypid from pg_attribute where attrelid = %(oid)s)
  union all
  select b.of, t.oid, t.typbasetype, t.typcategory, t.typelem, t.typlen, t.typdelim
  from base b join pg_type t on t.oid = b.typbasetype
)
select a.attname, a.attgenerated <> '', a.attidentity = 'a', b.oid::regtype::text,
  b.typcategory = 'A' and b.typlen = -1, b.typelem::regtype::text, b.typdelim::text
from pg_attribute a join base b on b.of = a.atttypid and b.typbasetype = 0
where a.attrelid = %(oid)s and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_PRIMARY_KEY: Final = (
    "select a.attname from pg_index i join pg_attribute a on a.attrelid = i.indrelid"
    " where i.indrelid = %s and i.indisprimary"
    " and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]) order by a.attnum"
)
_UNIQUE: Final = (
    "select array_agg(a.attname::text) from pg_index i join pg_attribute a"
    " on a.attrelid = i.indrelid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1])"
    " where i.indrelid = %s and i.indisunique and i.indimmediate and i.indisvalid"
    " and i.indpred is null and i.indexprs is null group by i.indexrelid"
)
_DOCUMENTS: Final = frozenset({"json", "jsonb"})


@dataclass(frozen=True)
class TargetTable:
    """A table as it is now. Without `keys`, a row is known by all that its source says of it."""

    name: str
    columns: Mapping[str, ColumnText]  # those that can be written, in their order
    generated: frozenset[str]
    keys: tuple[str, ...]
    can_update: bool  # in place, by a unique index; no column is `generated always as identity`

    @property
    def identifier(self) -> sql.Identifier:
        return identifier(self.name)


def identifier(name: str) -> sql.Identifier:
    """`schema.table`, split at the first dot."""
    return sql.Identifier(*qualified(name).split(".", 1))


def look(
    connection: psycopg.Connection, name: str, keys: Sequence[str], *, history: bool
) -> TargetTable | None:
    """The table of this name; None if there is none."""
    found = connection.execute(
        "select to_regclass(%s)::oid", (identifier(name).as_string(connection),)
    ).fetchone()
    if found is None or found[0] is None:
        return None
    oid = found[0]
    columns, generated, fixed = {}, set(), set()
    for column, is_generated, is_fixed, *kind in connection.execute(_COLUMNS, {"oid": oid}):
        if is_fixed:
            fixed.add(column)
        if is_generated:
            generated.add(column)
        else:
            columns[column] = _text(*kind)
    primary = [column for (column,) in connection.execute(_PRIMARY_KEY, (oid,))]
    chosen = tuple(keys) or tuple(c for c in primary if not (history and c in HISTORY))
    unique = [set(names) for (names,) in connection.execute(_UNIQUE, (oid,))]
    can_update = set(chosen) in unique and fixed <= set(chosen)
    return TargetTable(qualified(name), columns, frozenset(generated), chosen, can_update)


def create(
    connection: psycopg.Connection,
    name: str,
    columns: Sequence[ColumnShape],
    keys: Sequence[str],
    *,
    history: bool,
) -> None:
    """Make the table with `keys` as its primary key; only they are not null."""
    parts = [_definition(connection, column) for column in columns]
    primary = [sql.Identifier(key) for key in keys]
    if history:
        parts.append(
            sql.SQL("{} timestamptz not null, {} timestamptz, {} boolean not null").format(
                *map(sql.Identifier, HISTORY)
            )
        )
        primary.append(sql.Identifier(VALID_FROM))
    if keys:
        parts.append(sql.SQL("primary key ({})").format(sql.SQL(", ").join(primary)))
    schema = sql.Identifier(qualified(name).split(".", 1)[0])
    connection.execute(sql.SQL("create schema if not exists {}").format(schema))
    connection.execute(
        sql.SQL("create table if not exists {} ({})").format(
            identifier(name), sql.SQL(", ").join(parts)
        )
    )
    if keys and history:
        connection.execute(
            sql.SQL("create unique index if not exists {} on {} ({}) where {}").format(
                sql.Identifier(f"{name.split('.', 1)[-1]}_current"),
                identifier(name),
                sql.SQL(", ").join(primary[:-1]),
                sql.Identifier(CURRENT),
            )
        )


def add_columns(connection: psycopg.Connection, name: str, columns: Iterable[ColumnShape]) -> None:
    for column in columns:
        connection.execute(
            sql.SQL("alter table {} add column if not exists {}").format(
                identifier(name), _definition(connection, column)
            )
        )


def _definition(connection: psycopg.Connection, column: ColumnShape) -> sql.Composed:
    """The source's type if it exists here; else text, as of an enum that was not made here."""
    has_modifiers = connection.info.server_version >= 170_000
    modifier = "coalesce(to_regtypemod(%(type)s), -1)" if has_modifiers else "-1"
    query = sql.SQL(f"select format_type(to_regtype(%(type)s), {modifier})")
    try:
        with connection.transaction():
            known = connection.execute(query, {"type": column.type}).fetchone()
    except psycopg.Error:
        known = None  # earlier versions of Postgres do not take what is not a type for none
    type_ = known[0] if known is not None and known[0] is not None else "text"
    return sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(type_))


def _text(type_: str, is_array: bool, element: str, delimiter: str) -> ColumnText:
    if is_array:
        return ColumnText("array", "json" if element in _DOCUMENTS else "plain", delimiter)
    kind: Kind = "json" if type_ in _DOCUMENTS else "plain"
    return ColumnText(kind)
