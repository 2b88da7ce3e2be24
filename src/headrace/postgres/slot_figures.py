"""What Postgres says of one slot at this moment, for metrics and before it is dropped.

Nothing here changes a slot, and a slot of another database is not seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo

# A scrape must answer while Postgres does not: Prometheus gives up after ten seconds.
_CONNECT_SECS: Final = 2
_STATEMENT_MS: Final = 2_000

_FIGURES: Final = """
select active_pid, coalesce(wal_status, 'lost'),
       coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint,
       coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::bigint,
       (select case when setting = '-1' then -1 else setting::bigint * 1024 * 1024 end
        from pg_settings where name = 'max_slot_wal_keep_size')
from pg_replication_slots where slot_name = %s and database = current_database()
"""


@dataclass(frozen=True)
class SlotFigures:
    """`limit_bytes` is what Postgres may keep for a slot, -1 without a limit."""

    reader_pid: int | None
    status: str
    retained_bytes: int
    lag_bytes: int
    limit_bytes: int


def slot_figures(url: str, slot: str) -> SlotFigures | None:
    """None if this database has no such slot."""
    bounded = make_conninfo(url, connect_timeout=_CONNECT_SECS)
    with psycopg.connect(bounded, autocommit=True) as connection:
        connection.execute(f"set statement_timeout = {_STATEMENT_MS}".encode())
        row = connection.execute(_FIGURES, (slot,)).fetchone()
    return None if row is None else SlotFigures(*row)
