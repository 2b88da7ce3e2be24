"""One logical replication connection: messages off a slot, acknowledgements back.

psycopg has no replication interface; a COPY BOTH exchange over its libpq wrapper is all it takes.
"""

from __future__ import annotations

import select
import time
from struct import Struct
from types import TracebackType

import psycopg
from psycopg import sql

from headrace.postgres.pgoutput import lsn_text
from headrace.postgres.values import SESSION

_DATA, _KEEPALIVE = ord("w"), ord("k")
_DATA_HEAD_BYTES = 25
_KEEPALIVE_BODY = Struct(">xQqB")
_STATUS = Struct(">cQQQqB")
_EPOCH_2000_SECS = 946_684_800
_TAKE_OVER_SECS = 2.0
_POLL_SECS = 0.1


class Replication:
    """A reader of one slot, from a position on. Closing it frees the slot."""

    def __init__(self, url: str, slot: str, publication: str, start: int, *, origin: str) -> None:
        # The sender must not hang up while Spark is busy with a long batch; a dead connection
        # still ends it, because the socket closes.
        options = f"{SESSION} -c wal_sender_timeout=0"
        self._connection = psycopg.connect(
            url,
            autocommit=True,
            options=options,
            application_name=f"headrace {slot}",
            replication="database",
        )
        self._pq = self._connection.pgconn
        self.sent_lsn = 0  # everything committed before it has been sent to us
        query = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {},"
            " origin {})"
        ).format(
            sql.Identifier(slot),
            sql.SQL(lsn_text(start)),
            sql.Literal(sql.Identifier(publication).as_string(None)),
            sql.Literal(origin),
        )
        try:
            self._connection.execute(query)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Replication:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def receive(self, wait_secs: float) -> bytes | None:
        """The next pgoutput message, or None if none came in time."""
        found = self.receive_several(wait_secs, 1)
        return found[0] if found else None

    def receive_several(
        self, wait_secs: float, messages_max: int, bytes_max: int = 1
    ) -> list[bytes]:
        """The messages that are here, or the first that come in time; none if none did.

        The last one may exceed `bytes_max`. An OperationalError has the SQLSTATE of what Postgres
        said, if it said anything.
        """
        deadline = time.monotonic() + wait_secs
        found: list[bytes] = []
        size_bytes = 0
        while len(found) < messages_max and size_bytes < bytes_max:
            length, data = self._pq.get_copy_data(1)
            if length > 0:
                if data[0] == _DATA:
                    found.append(bytes(data[_DATA_HEAD_BYTES:]))
                    size_bytes += length - _DATA_HEAD_BYTES
                elif data[0] == _KEEPALIVE:
                    self.sent_lsn = max(self.sent_lsn, _KEEPALIVE_BODY.unpack_from(data)[0])
            elif length == 0:
                if found or not self._wait(deadline):
                    break
            else:
                result = self._pq.get_result()
                reason = self._pq.get_error_message()
                raise psycopg.OperationalError(f"replication ended: {reason}", info=result)
        return found

    def _wait(self, deadline: float) -> bool:
        """Take in what came from the network; whether anything did until `deadline`."""
        remaining = max(0.0, deadline - time.monotonic())
        if not select.select([self._pq.socket], [], [], remaining)[0]:
            return False
        self._pq.consume_input()
        return True

    def acknowledge(self, lsn: int) -> None:
        """Tell Postgres that nothing before `lsn` will be asked for again; it answers with how
        far it has sent."""
        now_us = int((time.time() - _EPOCH_2000_SECS) * 1e6)
        self._pq.put_copy_data(_STATUS.pack(b"r", lsn, lsn, lsn, now_us, 1))
        while self._pq.flush():
            select.select([], [self._pq.socket], [], _POLL_SECS)


def open_replication(
    url: str, slot: str, publication: str, start: int, *, origin: str = "any"
) -> Replication:
    """Open the slot, taking it over from a reader that died without closing its connection."""
    deadline = time.monotonic() + _TAKE_OVER_SECS
    while True:
        try:
            return Replication(url, slot, publication, start, origin=origin)
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                _end_reader(url, slot)
            time.sleep(_POLL_SECS)


def _end_reader(url: str, slot: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(active_pid) from pg_replication_slots"
            " where slot_name = %s and active_pid is not null",
            (slot,),
        )
