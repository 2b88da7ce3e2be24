"""Tables as shapes see them: their columns, their rows at a moment, whether a row belongs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from headrace.postgres.pgoutput import lsn_number
from headrace.postgres.values import SESSION
from headrace.shapes.definition import BadRequest, Definition
from headrace.shapes.where import compile_where

PUBLICATION = "headrace_shapes"
SYSTEM_SCHEMAS = frozenset({"information_schema", "headrace"})
LOCK_SECS = 10
QUERY_BYTES = 1 << 19
Row = dict[str, str | None]

_COLUMNS = """
select a.attname, coalesce(e.typname, t.typname), e.oid is not null, a.attnotnull,
       greatest(a.attndims, 1), a.atttypmod,
       coalesce(array_position(i.indkey::int2[], a.attnum), -1)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  and a.attgenerated = ''
join pg_type t on t.oid = a.atttypid
left join pg_type e on e.oid = t.typelem and t.typcategory = 'A'
left join pg_index i on i.indrelid = c.oid and i.indisprimary
where n.nspname = %s and c.relname = %s and c.relkind in ('r', 'p')
order by a.attnum
"""


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    is_array: bool
    not_null: bool
    dims: int
    modifier: int
    key_index: int  # -1 outside the primary key

    def described(self) -> dict[str, Any]:
        """As the header electric-schema has it."""
        found: dict[str, Any] = {"type": self.type}
        if self.is_array:
            found["dims"] = self.dims
        if self.not_null:
            found["not_null"] = True
        if self.key_index >= 0:
            found["pk_index"] = self.key_index
        if self.type in ("varchar", "bpchar") and self.modifier > 4:
            found["max_length" if self.type == "varchar" else "length"] = self.modifier - 4
        return found


@dataclass(frozen=True)
class Table:
    """A table and the part of it that a definition asks for."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    selected: tuple[str, ...]
    keys: tuple[str, ...]

    @property
    def schema_header(self) -> str:
        chosen = {c.name: c.described() for c in self.columns if c.name in self.selected}
        return json.dumps(chosen)

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)


@dataclass(frozen=True)
class Snapshot:
    """What a transaction saw: which others were done when it looked, and where the log was."""

    lsn: int
    xmin: int
    xmax: int
    running: tuple[int, ...]

    def saw(self, commit_lsn: int, xid: int) -> bool:
        """Whether a change is already in the snapshot's rows.

        What commits behind the snapshot's place in the log is not; before it, its number tells.
        Numbers are 32 bits wide here and wrap round, which is why the place comes first.
        """
        if commit_lsn >= self.lsn:
            return False
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(
        url, autocommit=True, options=SESSION, application_name="headrace shapes"
    )


def describe(connection: psycopg.Connection, definition: Definition) -> Table:
    if definition.schema in SYSTEM_SCHEMAS or definition.schema.startswith("pg_"):
        raise BadRequest(table=f"is in {definition.schema}, which is not for shapes")
    rows = connection.execute(_COLUMNS, (definition.schema, definition.table)).fetchall()
    if not rows:
        raise BadRequest(
            table=f'Table "{definition.schema}"."{definition.table}" does not exist. If the table '
            "name contains capitals or special characters you must quote it."
        )
    columns = tuple(Column(*row) for row in rows)
    names = [column.name for column in columns]
    in_key = sorted((c.key_index, c.name) for c in columns if c.key_index >= 0)
    keys = tuple(name for _, name in in_key) or tuple(names)
    selected = tuple(names)
    if definition.columns is not None:
        unknown = [name for name in definition.columns if name not in names]
        if unknown:
            found = ", ".join(unknown)
            raise BadRequest(columns=f"The following columns could not be found: {found}")
        missing = [name for name in keys if name not in definition.columns]
        if missing:
            raise BadRequest(
                columns=f"Must include all primary key columns, missing: {', '.join(missing)}"
            )
        selected = tuple(name for name in names if name in definition.columns)
    return Table(definition.schema, definition.table, columns, selected, keys)


def publish(connection: psycopg.Connection, table: Table) -> None:
    """Let the slot have the table's changes, old rows included.

    The lock waits for whoever writes to the table: a change that was made before the table was
    published would never reach the slot, though its transaction commits afterwards.
    """
    published = connection.execute(
        "select 1 from pg_publication_tables t join pg_class c on c.oid = to_regclass(%s)"
        " where pubname = %s and schemaname = %s and tablename = %s and c.relreplident = 'f'",
        (table.identifier.as_string(None), PUBLICATION, table.schema, table.name),
    ).fetchone()
    if published:
        return
    with connection.transaction():
        connection.execute(f"set local lock_timeout = '{LOCK_SECS}s'".encode())
        for statement in (
            "lock table {} in share row exclusive mode",
            "alter table {} replica identity full",
        ):
            connection.execute(sql.SQL(statement).format(table.identifier))
        known = connection.execute(
            "select 1 from pg_publication_tables"
            " where pubname = %s and schemaname = %s and tablename = %s",
            (PUBLICATION, table.schema, table.name),
        ).fetchone()
        if not known:
            connection.execute(
                sql.SQL("alter publication {} add table {}").format(
                    sql.Identifier(PUBLICATION), table.identifier
                )
            )


def clause(definition: Definition, table: Table) -> sql.Composed | None:
    if definition.where is None:
        return None
    names = [column.name for column in table.columns]
    return compile_where(definition.where, names, dict(definition.params))


def rows(
    connection: psycopg.Connection, definition: Definition, table: Table
) -> tuple[Snapshot, Iterator[Row]]:
    """What the transaction that `connection` is in sees: the snapshot, and its rows."""
    found = connection.execute(
        "select pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"
    ).fetchone()
    assert found is not None, "a select without a table has one row"
    xmin, xmax, running = found[0].split(":")
    numbers = [int(number) & 0xFFFFFFFF for number in running.split(",") if number]
    snapshot = Snapshot(
        lsn_number(found[1]), int(xmin) & 0xFFFFFFFF, int(xmax) & 0xFFFFFFFF, tuple(numbers)
    )
    return snapshot, _rows(connection, definition, table)


def _rows(connection: psycopg.Connection, definition: Definition, table: Table) -> Iterator[Row]:
    """One in memory at a time: rows may be wide."""
    if definition.log == "changes_only":
        return
    # format() prints a value as replication does; a cast to text would not (bool, char).
    columns = sql.SQL(", ").join(
        sql.SQL("case when {0} is null then null else format('%s', {0}) end").format(
            sql.Identifier(name)
        )
        for name in table.selected
    )
    where = clause(definition, table)
    condition = sql.SQL("") if where is None else sql.SQL(" where ({})").format(where)
    query = sql.SQL("select {} from {}{}").format(columns, table.identifier, condition)
    with connection.cursor() as cursor:
        for row in cursor.stream(query):
            yield dict(zip(table.selected, row, strict=True))


def matches(
    connection: psycopg.Connection, definition: Definition, table: Table, found: Sequence[Row]
) -> list[bool]:
    """Which of the rows belong to the shape, by Postgres's own understanding of the clause."""
    where = clause(definition, table)
    if where is None:
        return [True] * len(found)
    # Only what the clause looks at: the other columns may be wide.
    needed = [c for c in table.columns if sql.Identifier(c.name) in where]
    documents = {c.name for c in needed if c.type in ("json", "jsonb") and not c.is_array}
    # The names of the outer query cannot be spelled in a clause, so a clause cannot mean them.
    query = sql.SQL(
        'select (select coalesce(({}), false) from jsonb_populate_record(null::{}, "-v") as "-r")'
        ' from jsonb_array_elements({}::jsonb) with ordinality as "-e"("-v", "-n") order by "-n"'
    )
    belong: list[bool] = []
    for rows in _arrays(({c.name: row[c.name] for c in needed} for row in found), documents):
        filled = query.format(where, table.identifier, sql.Literal(rows))
        belong += (bool(row[0]) for row in connection.execute(filled))
    return belong


def _arrays(found: Iterator[Row], documents: AbstractSet[str]) -> Iterator[str]:
    """The rows as JSON arrays of a bounded size."""
    pending: list[str] = []
    size = 0
    for row in found:
        typed = {
            name: json.loads(text) if text is not None and name in documents else text
            for name, text in row.items()
        }
        pending.append(json.dumps(typed))
        size += len(pending[-1])
        if size >= QUERY_BYTES:
            yield f"[{','.join(pending)}]"
            pending, size = [], 0
    if pending:
        yield f"[{','.join(pending)}]"
