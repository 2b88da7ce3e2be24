"""Which Postgres a position is of: its system identifier, its timeline, and how far its log goes.

A position says what a consumer has read, not what the database still knows of. Restored to an
earlier moment, or failed over to a standby that was behind, it writes other changes where the ones
that were read were at. A position beyond what this Postgres has written is therefore never trusted.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql

from headrace.postgres.pgoutput import lsn_number, lsn_text

_NOW = (
    "select system_identifier::text, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))"
    "::bit(32)::int, pg_current_wal_flush_lsn()::text from pg_control_system()"
)


@dataclass(frozen=True)
class PostgresIdentity:
    """A Postgres at a moment. `left` says where each earlier timeline was left."""

    system: str
    timeline: int
    end: int
    left: dict[int, int]

    @property
    def name(self) -> str:
        """Its form in a position."""
        return f"{self.system}/{self.timeline}"

    def doubts(self, name: str, lsn: int) -> str | None:
        """Why changes up to `lsn`, read from the server `name`, are not in this one's log."""
        system, _, timeline = (name or self.name).partition("/")
        if system != self.system:
            return f"this Postgres is another one (system {self.system}, before {system})"
        end = self.end if int(timeline) == self.timeline else self.left.get(int(timeline), 0)
        if lsn <= end:
            return None
        return (
            f"changes were read up to {lsn_text(lsn)} of timeline {timeline}, and this Postgres, "
            f"restored or failed over, has them up to {lsn_text(end)}"
        )


def identify(url: str, connection: psycopg.Connection, name: str) -> PostgresIdentity:
    """The server behind `connection`, with the past of its timeline if `name` is of another."""
    row = connection.execute(_NOW).fetchone()
    assert row is not None, "a select of functions has one row"
    system, timeline, end = row
    server = PostgresIdentity(system, timeline, lsn_number(end), {})
    if not name or name == server.name or timeline == 1:
        return server
    return PostgresIdentity(system, timeline, server.end, _left(url, timeline))


def _left(url: str, timeline: int) -> dict[int, int]:
    """From the history file of a timeline: `1<tab>0/3000060<tab>reason`, a line each."""
    with psycopg.connect(url, autocommit=True, replication="database") as connection:
        query = sql.SQL("TIMELINE_HISTORY {}").format(sql.Literal(timeline))
        row = connection.execute(query).fetchone()
    assert row is not None, "TIMELINE_HISTORY answers with one row"
    text = row[1].decode() if isinstance(row[1], bytes) else str(row[1])
    lines = [line.split("\t") for line in text.splitlines() if line and line[0].isdigit()]
    return {int(parts[0]): lsn_number(parts[1]) for parts in lines}
