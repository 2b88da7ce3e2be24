"""Names of replication slots. Postgres has one set of them for all databases of a server.

Two databases that use the same name are therefore in each other's way: the default name carries
the database, and a slot of another database is refused, never read or dropped.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import psycopg

# Postgres allows 63 characters; the name of the snapshot's table adds 9.
_SLOT_NAME: Final = re.compile(r"[a-z0-9_]{1,50}")
_BEFORE: Final = "headrace"  # the default of earlier versions, whatever the database
_DATABASE_CHARS_MAX: Final = 30


class SlotError(RuntimeError):
    """The feed cannot be set up or continued; the message says what to do."""


def check_slot_name(name: str) -> None:
    if not _SLOT_NAME.fullmatch(name):
        raise SlotError(
            f"{name!r} is not a valid slot name: use 1 to 50 lower-case letters, digits and _."
        )


def default_slot(connection: psycopg.Connection) -> str:
    """`headrace_<database>`, or `headrace` where this database has such a slot from before."""
    row = connection.execute("select to_regclass('headrace.slots')").fetchone()
    if row != (None,):
        known = "select 1 from headrace.slots where slot = %s"
        if connection.execute(known, (_BEFORE,)).fetchone() is not None:
            return _BEFORE
    return with_database("headrace", connection.info.dbname)


def with_database(prefix: str, database: str) -> str:
    """A slot name for `database`; a database name that is not a valid slot name gets a digest."""
    plain = re.sub(r"[^a-z0-9_]", "_", database.lower())[:_DATABASE_CHARS_MAX]
    if plain == database:
        return f"{prefix}_{plain}"
    return f"{prefix}_{plain}_{hashlib.sha256(database.encode()).hexdigest()[:8]}"


def check_database(connection: psycopg.Connection, slot: str) -> None:
    """Refuse a name that another database of the server uses."""
    row = connection.execute(
        "select coalesce(database, '(none)') from pg_replication_slots"
        " where slot_name = %s and database is distinct from current_database()",
        (slot,),
    ).fetchone()
    if row is not None:
        raise SlotError(
            f"The slot {slot} belongs to the database {row[0]} on the same server, and slot names "
            "are unique per server. Set slot to another name, for example to "
            f"{with_database(slot, connection.info.dbname)[:50]}."
        )
