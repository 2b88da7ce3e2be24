"""Whether another process reads a slot.

A reader takes its slot over from one that died without closing its connection
(`open_replication`). Two live processes on one slot would take it from each other for ever, so a
process that may have been started twice asks here first.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from headrace.postgres.slot_names import SlotError

# A live reader replies at least every ten seconds (shapes/feed.py); a dead one never again.
_SILENT_SECS = 15.0
_POLL_SECS = 0.1

_READER = """
    select r.pid, r.reply_time, coalesce(host(r.client_addr), 'this machine')
    from pg_replication_slots s join pg_stat_replication r on r.pid = s.active_pid
    where s.slot_name = %s
"""


def refuse_second_reader(url: str, slot: str) -> None:
    """Raise SlotError if a process reads the slot that is seen to be alive; wait for a dead one."""
    deadline = time.monotonic() + _SILENT_SECS
    with psycopg.connect(url, autocommit=True) as connection:
        first = _reader(connection, slot)
        while first is not None and time.monotonic() < deadline:
            found = _reader(connection, slot)
            if found is None:
                return
            if found != first:
                raise SlotError(
                    f"Another process, from {found[2]}, reads the slot {slot}, and a slot has one "
                    "reader. Stop that process, or choose another slot."
                )
            time.sleep(_POLL_SECS)


def _reader(connection: psycopg.Connection, slot: str) -> tuple[Any, ...] | None:
    """Backend, last reply and address of the slot's reader; they change only if one is alive."""
    return connection.execute(_READER, (slot,)).fetchone()
