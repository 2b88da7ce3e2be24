"""What each stream feeds, kept in Postgres with the rows: its tables and their columns, and the
messages of a snapshot that has begun and not ended.

It changes in the transaction of the rows, so it is never ahead of them or behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import psycopg
from psycopg.types.json import Jsonb

from headrace.changes.applying import Pending

_LOCK = 0x6170706C79  # "apply": one set-up at a time
_FETCHED_AT_A_TIME = 500

_SET_UP = """
create schema if not exists headrace;
create table if not exists headrace.applied_streams (
  writer text not null,
  stream text not null,
  target text not null,
  columns jsonb not null,
  primary key (writer, stream, target)
);
create index if not exists applied_streams_target on headrace.applied_streams (target);
create table if not exists headrace.applied_pending (
  writer text not null,
  stream text not null,
  seq bigint generated always as identity,
  position text not null,
  message bytea not null,
  primary key (writer, stream, seq)
)
"""


@cache
def prepare(url: str) -> None:
    """Make the tables; once per process, before the first batch."""
    with psycopg.connect(url) as connection:
        connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
        made = connection.execute("select to_regclass('headrace.applied_pending')").fetchone()
        if made == (None,):
            connection.execute(_SET_UP)


class TableRegistry:
    """Of one stream of one writer."""

    def __init__(self, connection: psycopg.Connection, writer: str, stream: str) -> None:
        self._connection = connection
        self._of = {"writer": writer, "stream": stream}

    def targets(self) -> dict[str, list[str]]:
        """The tables that the stream feeds, and the columns that it has named in each."""
        query = (
            "select target, columns from headrace.applied_streams"
            " where writer = %(writer)s and stream = %(stream)s"
        )
        return dict(self._connection.execute(query, self._of).fetchall())

    def save(self, target: str, columns: Sequence[str]) -> None:
        self._connection.execute(
            "insert into headrace.applied_streams (writer, stream, target, columns)"
            " values (%(writer)s, %(stream)s, %(target)s, %(columns)s)"
            " on conflict (writer, stream, target) do update set columns = excluded.columns",
            self._of | {"target": target, "columns": Jsonb(list(columns))},
        )

    def other_stream(self, target: str) -> str | None:
        """Another stream of this writer that feeds `target` too."""
        row = self._connection.execute(
            "select stream from headrace.applied_streams where target = %(target)s"
            " and writer = %(writer)s and stream <> %(stream)s limit 1",
            self._of | {"target": target},
        ).fetchone()
        return None if row is None else str(row[0])

    def has_pending(self) -> bool:
        query = (
            "select exists (select from headrace.applied_pending"
            " where writer = %(writer)s and stream = %(stream)s)"
        )
        return self._connection.execute(query, self._of).fetchone() == (True,)

    def add_pending(self, messages: Sequence[Pending]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(
                "insert into headrace.applied_pending (writer, stream, position, message)"
                " values (%(writer)s, %(stream)s, %(offset)s, %(message)s)",
                [self._of | each._asdict() for each in messages],
            )

    def pending(self) -> Iterator[Pending]:
        """The messages in their order, few in memory at a time."""
        with self._connection.cursor(name="headrace_pending") as cursor:
            cursor.itersize = _FETCHED_AT_A_TIME
            cursor.execute(
                "select position, message from headrace.applied_pending"
                " where writer = %(writer)s and stream = %(stream)s order by seq",
                self._of,
            )
            for offset, message in cursor:
                yield Pending(offset, message)

    def drop_pending(self) -> None:
        query = (
            "delete from headrace.applied_pending where writer = %(writer)s and stream = %(stream)s"
        )
        self._connection.execute(query, self._of)
