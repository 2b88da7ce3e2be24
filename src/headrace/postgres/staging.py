"""Tables copied as of one position of the log, inside Postgres: rows numbered from 0.

Read again after a restart a copy is the same, row for row, which a query over the live tables is
not. It is an unlogged table, since what is copied while a slot is held back would count against
what the slot may keep: a crash of Postgres empties it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import astuple

import psycopg
from psycopg import sql

from headrace.postgres.catalog import describe, exists, identifier, quoted
from headrace.postgres.pgoutput import Change, Column, Encoding, Relation, joined


class Staging:
    """One copy, in the table `headrace.<name>`."""

    def __init__(self, name: str, encoding: Encoding) -> None:
        self._name = name
        self._encoding = encoding

    def is_there(self, connection: psycopg.Connection) -> bool:
        if not exists(connection, quoted(f"headrace.{self._name}")):
            return False
        columns = self._format("select 1 from headrace.{} where seq < 0 limit 1")
        return connection.execute(columns).fetchone() is not None

    def drop(self, connection: psycopg.Connection) -> None:
        connection.execute(self._format("drop table if exists headrace.{}"))

    def begin(self, connection: psycopg.Connection, tables: Sequence[str]) -> None:
        """Make it, empty but for the columns of `tables`, which are under numbers no row has."""
        self.drop(connection)
        connection.execute(
            self._format(
                "create unlogged table headrace.{} (seq bigint primary key, relation text not null,"
                " fields text[], taken_at timestamptz not null default now())"
            )
        )
        for number, table in enumerate(tables, 1):
            connection.execute(
                self._format("insert into headrace.{} values (%s, %s, %s)"),
                (-number, table, _texts(describe(connection, table).columns)),
            )

    def add_resets(self, connection: psycopg.Connection, tables: Sequence[str]) -> int:
        for seq, table in enumerate(tables):
            connection.execute(
                self._format("insert into headrace.{} (seq, relation) values (%s, %s)"),
                (seq, table),
            )
        return len(tables)

    def add_columns(
        self, connection: psycopg.Connection, table: str, columns: str, seq: int
    ) -> int:
        """A row that says which columns `table` has, for a consumer that knows nothing of it.

        It is an array in an array, which no row of a table is.
        """
        connection.execute(
            self._format("insert into headrace.{} (seq, relation, fields) values (%s, %s, %s)"),
            (seq, table, [[columns]]),
        )
        return 1

    def add_rows(self, connection: psycopg.Connection, table: str, first: int) -> int:
        columns = describe(connection, table).columns
        texts = sql.SQL(", ").join(
            # format() prints as replication does; a cast to text would not (bool, char).
            sql.SQL("case when {0} is null then null else format('%%s', {0}) end").format(
                sql.Identifier(column.name)
            )
            for column in columns
        )
        done = connection.execute(
            sql.SQL(
                "insert into headrace.{} (seq, relation, fields)"
                " select %s + row_number() over () - 1, %s, array[{}]::text[] from {}"
            ).format(sql.Identifier(self._name), texts, identifier(table)),
            (first, table),
        )
        return done.rowcount

    def relations(self, connection: psycopg.Connection) -> dict[str, Relation]:
        """The tables as they were when they were copied."""
        query = self._format("select relation, fields from headrace.{} where seq < 0")
        return {
            table: Relation.of(table, _columns(texts), self._encoding)
            for table, texts in connection.execute(query)
        }

    def rows(
        self, connection: psycopg.Connection, lsn: str, start: int, end: int
    ) -> Generator[Change]:
        """The rows numbered from `start` to before `end`, one in memory at a time."""
        relations = self.relations(connection)
        query = self._format(
            "select seq, relation, fields, extract(epoch from taken_at) * 1000000"
            " from headrace.{} where seq >= %s and seq < %s order by seq"
        )
        with connection.cursor() as cursor:
            # Row by row: the reader ends a batch by its bytes, and rows may be wide.
            for seq, table, texts, at in cursor.stream(query, (start, end)):
                if texts is None:
                    yield Change(table, "reset", None, None, None, [], lsn, seq, 0, int(at))
                    continue
                if texts and isinstance(texts[0], list):
                    value = texts[0][0]
                    yield Change(table, "schema", None, value, None, [], lsn, seq, 0, int(at))
                    continue
                relation = relations[table]
                fields = relation.fields(texts)
                key, value = relation.key_of(fields), joined(fields)
                yield Change(table, "snapshot", key, value, None, [], lsn, seq, 0, int(at))

    def _format(self, query: str) -> sql.Composed:
        return sql.SQL(query).format(sql.Identifier(self._name))


def _texts(columns: Sequence[Column]) -> list[str]:
    return [str(part) for column in columns for part in astuple(column)]


def _columns(texts: Sequence[str]) -> tuple[Column, ...]:
    parts = iter(texts)
    return tuple(
        Column(name, int(oid), int(modifier), is_key == str(True))
        for name, oid, modifier, is_key in zip(parts, parts, parts, parts, strict=True)
    )
