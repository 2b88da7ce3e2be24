"""Which checkpoint the ledger knows a writer from, and forgetting a writer of that checkpoint.

The ledger names a checkpoint by the id that Spark gave its query, which is in the checkpoint's
file `metadata`. Nothing is forgotten of another checkpoint than the one that is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import psycopg

from headrace.postgres.catalog import exists

LEDGER: Final = ("headrace.ledger_runs",)
APPLIED: Final = ("headrace.applied_streams", "headrace.applied_pending")

_OWNER = (
    "select query, batch from headrace.ledger where writer = %s order by batch desc, query limit 1"
)


class Owner(NamedTuple):
    """The id of a checkpoint's query, and the last batch that is in."""

    query: str
    batch: int


def owner_of(url: str, writer: str) -> Owner | None:
    with psycopg.connect(url) as connection:
        if not exists(connection, "headrace.ledger"):
            return None
        row = connection.execute(_OWNER, (writer,)).fetchone()
    return None if row is None else Owner(*row)


def forget(url: str, writer: str, query: str | None, tables: Sequence[str]) -> None:
    """Forget what the checkpoint of `query` wrote, and the writer's rows in `tables`.

    These stay if the ledger knows the writer from a checkpoint that has begun meanwhile.
    """
    with psycopg.connect(url) as connection:
        if exists(connection, "headrace.ledger"):
            gone = "delete from headrace.ledger where writer = %s and query = %s"
            connection.execute(gone, (writer, query))
            if connection.execute(_OWNER, (writer,)).fetchone() is not None:
                return
        for table in tables:
            if exists(connection, table):
                connection.execute(f"delete from {table} where writer = %s".encode(), (writer,))
