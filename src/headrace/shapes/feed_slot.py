"""The replication slot of the shapes, and whether it still has every change since those read.

A slot can be dropped, made again or given up by Postgres, and Postgres can be restored to an
earlier moment. Replication then continues silently behind the gap, so this is checked before every
connection. Only fresh snapshots have what was lost.
"""

from __future__ import annotations

import time
from collections.abc import Collection

import psycopg

from headrace.postgres.history import PostgresIdentity, identify
from headrace.postgres.pgoutput import lsn_number, lsn_text
from headrace.postgres.slot_names import check_database
from headrace.shapes.catalog import ensure_publication
from headrace.shapes.tables import connect

_DROP_SECS = 10.0
_POLL_SECS = 0.1


class ChangesLost(RuntimeError):
    """Postgres no longer has all changes that follow those that were read."""


class FeedSlot:
    """The slot by its name. Remembers how far it was read, and from which Postgres."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self._url = url
        self._server: PostgresIdentity | None = None
        self._released = 0  # Postgres may forget everything before it
        self._known = 0  # the newest place in the log that is in a shape

    @property
    def server(self) -> PostgresIdentity:
        assert self._server is not None, "it was begun with"
        return self._server

    def begin(self, systems: Collection[str]) -> str | None:
        """Create slot and publication where they are missing; why changes are lost, if they are.

        `systems` are the servers that were read before.
        """
        with connect(self._url) as connection:
            check_database(connection, self.name)
            ensure_publication(connection)
            self._server = identify(self._url, connection, "")
            earlier = [name for name in systems if name != self._server.name]
            if earlier:
                self._server = identify(self._url, connection, earlier[0])
            found = self._position(connection)
            if isinstance(found, str):
                self._make(connection)
                return found
            self._released = found
        return None

    def renew(self) -> None:
        """Replace it, for shapes that begin from here."""
        with connect(self._url) as connection:
            ensure_publication(connection)
            self._make(connection)
            self._server = identify(self._url, connection, "")
            self._known = 0

    def check(self, done: int) -> None:
        """ChangesLost unless it goes on behind `done`, the last that was read of it."""
        with connect(self._url) as connection:
            server = identify(self._url, connection, self.server.name)
            doubt = server.doubts(self.server.name, max(done, self._known))
            if doubt is not None:
                raise ChangesLost(doubt)
            position = self._position(connection)
        if isinstance(position, str):
            raise ChangesLost(position)
        if position > self._released:
            released, begins = lsn_text(self._released), lsn_text(position)
            raise ChangesLost(
                f"the slot {self.name} begins at {begins}, and was read up to {released}: it was "
                "made again or moved on"
            )
        self._server = server

    def release(self, lsn: int) -> None:
        """Everything before `lsn` is about to be acknowledged."""
        self._released = max(self._released, lsn)

    def know(self, lsn: int) -> None:
        """A snapshot has what was on disk up to `lsn`."""
        self._known = max(self._known, lsn)

    def _position(self, connection: psycopg.Connection) -> int | str:
        """Up to where it was acknowledged; or why it is of no use."""
        row = connection.execute(
            "select coalesce(wal_status, 'lost'), confirmed_flush_lsn::text"
            " from pg_replication_slots where slot_name = %s",
            (self.name,),
        ).fetchone()
        if row is None:
            return f"there is no slot {self.name}"
        if row[0] == "lost":
            return f"Postgres gave up the slot {self.name}: see max_slot_wal_keep_size"
        return lsn_number(row[1])

    def _make(self, connection: psycopg.Connection) -> None:
        self._drop(connection)
        row = connection.execute(
            "select lsn::text from pg_create_logical_replication_slot(%s, 'pgoutput')",
            (self.name,),
        ).fetchone()
        assert row is not None, "it tells where the slot begins"
        self._released = lsn_number(row[0])

    def _drop(self, connection: psycopg.Connection) -> None:
        """Our own connection to it may not have ended yet at the other side."""
        deadline = time.monotonic() + _DROP_SECS
        while True:
            try:
                connection.execute(
                    "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
                    " where slot_name = %s",
                    (self.name,),
                )
                return
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_SECS)
