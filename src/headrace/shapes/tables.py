"""Tables as shapes see them: their columns, their rows at a moment, whether a row belongs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from headrace.postgres.pgoutput import Relation, lsn_number
from headrace.postgres.values import SESSION
from headrace.shapes.definition import Definition
from headrace.shapes.where import compile_where

QUERY_BYTES = 1 << 19
_NOTHING = sql.SQL("")
Row = dict[str, str | None]


@dataclass(frozen=True)
class TableColumn:
    name: str
    type: str
    is_array: bool
    not_null: bool
    dims: int
    modifier: int
    key_index: int  # -1 outside the primary key
    type_oid: int
    is_domain: bool
    is_document: bool  # json, jsonb or a domain over them

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
    columns: tuple[TableColumn, ...]
    selected: tuple[str, ...]
    keys: tuple[str, ...]
    oid: int
    members: frozenset[int]
    """The oids of the tables whose rows are its own: itself, and its partitions or heirs."""
    identity: str

    def is_still(self, oid: int, relation: Relation) -> bool:
        """Whether the table is what it was, by what replication says of it or of a member."""
        was = [(column.name, column.type_oid, column.modifier) for column in self.columns]
        now = [(column.name, column.type_oid, column.type_modifier) for column in relation.columns]
        if oid == self.oid:
            return was == now and relation.table == f"{self.schema}.{self.name}"
        return set(was) <= set(now)  # in an order of its own, and perhaps with more

    @property
    def schema_header(self) -> str:
        chosen = {c.name: c.described() for c in self.columns if c.name in self.selected}
        return json.dumps(chosen)

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)


@dataclass(frozen=True)
class TableSnapshot:
    """What a transaction saw: which others were done when it looked, and where the log was.

    `lsn` is where the next record went, and everything before `flushed` was on disk: what it saw
    of others was, unless they commit asynchronously.
    """

    lsn: int
    flushed: int
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


def clause(definition: Definition, table: Table) -> sql.Composed | None:
    if definition.where is None:
        return None
    names = [column.name for column in table.columns]
    return compile_where(definition.where, names, dict(definition.params))


def rows(
    connection: psycopg.Connection,
    definition: Definition,
    table: Table,
    where: Sequence[sql.Composable],
    ending: sql.Composable = _NOTHING,
) -> tuple[TableSnapshot, Iterator[Row]]:
    """What the transaction that `connection` is in sees: the snapshot, and the rows.

    All clauses of `where` hold for them; `ending` may order and limit them.
    """
    found = connection.execute(
        "select pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text,"
        " pg_current_wal_flush_lsn()::text"
    ).fetchone()
    assert found is not None, "a select without a table has one row"
    xmin, xmax, running = found[0].split(":")
    numbers = [int(number) & 0xFFFFFFFF for number in running.split(",") if number]
    snapshot = TableSnapshot(
        lsn_number(found[1]),
        lsn_number(found[2]),
        int(xmin) & 0xFFFFFFFF,
        int(xmax) & 0xFFFFFFFF,
        tuple(numbers),
    )
    if definition.log == "changes_only":
        return snapshot, iter(())
    return snapshot, _rows(connection, table, where, ending)


def _rows(
    connection: psycopg.Connection,
    table: Table,
    where: Sequence[sql.Composable],
    ending: sql.Composable,
) -> Iterator[Row]:
    """One in memory at a time: rows may be wide."""
    # format() prints a value as replication does; a cast to text would not (bool, char).
    columns = sql.SQL(", ").join(
        sql.SQL("case when {0} is null then null else format('%s', {0}) end").format(
            sql.Identifier(name)
        )
        for name in table.selected
    )
    condition = sql.SQL(" and ").join(sql.SQL("({})").format(each) for each in where)
    query = sql.SQL("select {} from {} where {} {}").format(
        columns, table.identifier, condition if where else sql.SQL("true"), ending
    )
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
    # Only what the clause looks at: the other columns may be wide. But a domain may refuse null.
    needed = [c for c in table.columns if c.is_domain or sql.Identifier(c.name) in where]
    documents = {c.name for c in needed if c.is_document}
    # The names of the outer query cannot be spelled in a clause, so a clause cannot mean them.
    # As json, which unlike jsonb keeps the text of the documents in it as it is.
    query = sql.SQL(
        'select (select coalesce(({}), false) from json_populate_record(null::{}, "-v") as "-r")'
        ' from json_array_elements({}::json) with ordinality as "-e"("-v", "-n") order by "-n"'
    )
    belong: list[bool] = []
    for rows in _arrays(({c.name: row[c.name] for c in needed} for row in found), documents):
        filled = query.format(where, table.identifier, sql.Literal(rows))
        belong += (bool(row[0]) for row in connection.execute(filled))
    return belong


def _arrays(found: Iterator[Row], documents: AbstractSet[str]) -> Iterator[str]:
    """The rows as JSON arrays of a bounded size, documents as Postgres printed them."""
    pending: list[str] = []
    size = 0
    for row in found:
        fields = (
            f"{json.dumps(name)}:"
            f"{text if text is not None and name in documents else json.dumps(text)}"
            for name, text in row.items()
        )
        pending.append(f"{{{','.join(fields)}}}")
        size += len(pending[-1])
        if size >= QUERY_BYTES:
            yield f"[{','.join(pending)}]"
            pending, size = [], 0
    if pending:
        yield f"[{','.join(pending)}]"
