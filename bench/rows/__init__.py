"""Every row, in the order in which it is run and printed."""

from __future__ import annotations

from fnmatch import fnmatchcase

from bench.rows.appends import BARE, PLAIN, PRODUCED
from bench.rows.base import Row
from bench.rows.buckets import BUCKETS
from bench.rows.clients import CLIENTS
from bench.rows.delivery import FAN_OUT, LATENCY
from bench.rows.memory import MEMORY
from bench.rows.replay import REPLAY

ROWS: dict[str, Row] = {
    row.name: row
    for row in [*BARE, *PLAIN, *PRODUCED, *LATENCY, *FAN_OUT, *REPLAY, *MEMORY, *CLIENTS, *BUCKETS]
}


def select(patterns: list[str]) -> list[Row]:
    """Rows whose name matches a pattern (`append-c64-s1`, `fanout*`); all of them for none."""
    if not patterns:
        return list(ROWS.values())
    chosen = [row for row in ROWS.values() if any(fnmatchcase(row.name, p) for p in patterns)]
    if not chosen:
        raise SystemExit(f"no row matches {' '.join(patterns)}; rows: {' '.join(ROWS)}")
    return chosen
