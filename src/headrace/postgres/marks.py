"""Marks in Postgres of what was delivered, which tell an old database from an old checkpoint.

With every batch `headrace.slots` gets a mark, a position behind everything that was read, and so
does the consumer's position. A Postgres without the mark was restored to a moment before it. And
it gets how far the consumer durably is, before Postgres is allowed to forget the changes up to
there: a checkpoint from before that would silently be started behind them.
"""

from __future__ import annotations

import psycopg

from headrace.postgres.pgoutput import lsn_number, lsn_text
from headrace.postgres.slot_names import SlotError
from headrace.postgres.slots import Slot, add_columns


class Marks:
    """Those of one slot. Keeps a connection, because there is a mark for every batch."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._connection: psycopg.Connection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def add(self, delivered: int) -> int:
        """Note that everything before `delivered` is durable at the consumer; a new mark."""
        if self._connection is None:
            self._connection = self._open()
        row = self._connection.execute(
            "update headrace.slots set mark = pg_current_wal_insert_lsn(), delivered = %s"
            " where slot = %s returning mark::text",
            (lsn_text(delivered), self._slot.name),
        ).fetchone()
        if row is None:
            raise psycopg.OperationalError("headrace.slots no longer has the slot.")
        return lsn_number(row[0])

    def _open(self) -> psycopg.Connection:
        connection = self._slot.connect()
        try:
            add_columns(connection)
            # Once a mark is in a position, a crash must not undo it.
            connection.execute("set synchronous_commit = on")
        except BaseException:
            connection.close()
            raise
        return connection

    def are_older_than(self, generation: int, mark: int) -> bool:
        """Whether what is noted here is from before the generation or the mark of a consumer."""
        noted = self._slot.noted()
        if noted is None:
            return True
        return (noted.generation, lsn_number(noted.mark or "0/0")) < (generation, mark)

    def delivered(self, generation: int) -> int:
        """Up to where a consumer of this generation has had the changes, as far as is known."""
        noted = self._slot.noted()
        if noted is None or noted.generation != generation:
            return 0
        return lsn_number(noted.delivered or "0/0")

    def check_position(self, generation: int, lsn: int) -> None:
        """Refuse a position from which Postgres would skip changes."""
        delivered, name = self.delivered(generation), self._slot.name
        if lsn >= delivered:
            return
        raise SlotError(
            f"The checkpoint is older than the slot {name}: it goes on at {lsn_text(lsn)}, and the "
            f"changes up to {lsn_text(delivered)} were delivered and released. Is it a copy or a "
            "backup? Go on with the newest one. If that is lost, run `headrace pipeline reset "
            "postgres-to-stream`, after which it begins with a fresh snapshot; "
            "for a query of your own, start with an empty checkpoint, and first run: "
            f"update headrace.slots set owner = null where slot = '{name}';"
        )
