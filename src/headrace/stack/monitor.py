"""The monitor: how far each direction of the sync is behind, and how much log its slots hold.

Serves `/metrics` for Prometheus, `/warnings` for `headrace stack status` and `/healthz`. A warning
comes before a slot endangers the disk: at half of what Postgres may keep for it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer

import httpx
import psycopg
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from headrace.postgres.slot_names import default_slot
from headrace.protocol.access import HostRules
from headrace.protocol.offsets import parse_token
from headrace.stack.page_handler import PageHandler
from headrace.stack.replication_lag import Behind, Lag

EVERY_SECS = 1.0
WARN_SHARE = 0.5
# Without a bound a slot may fill the disk. This much is worth a word, whatever the disk.
UNBOUNDED_WARN_BYTES = 1024**3
TO_STREAM = "postgres-to-stream"
TO_POSTGRES = "stream-to-postgres"
logger = logging.getLogger(__name__)

METRICS = {
    "headrace_sync_lag_seconds": "Since when a direction of the sync is behind; 0 if it is not.",
    "headrace_sync_lag_rows": "How many rows or messages a direction of the sync is behind.",
    "headrace_slot_retained_bytes": "Log that Postgres keeps because of a replication slot.",
    "headrace_slot_limit_bytes": "What it may keep (max_slot_wal_keep_size); -1 means no limit.",
    "headrace_slot_active": "Whether a consumer reads the slot now.",
    "headrace_sync_monitor_up": "Whether the last poll of Postgres and the server succeeded.",
}

_SLOTS = """
select slot_name, active, coalesce(wal_status, 'lost'),
       coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint,
       coalesce(pg_wal_lsn_diff(confirmed_flush_lsn, '0/0'), 0)::bigint
from pg_replication_slots where database = current_database() and slot_type = 'logical'
"""
_END = """
select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint,
       (select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint
        from pg_stat_user_tables where relname = %s and schemaname = 'public'),
       (select case when setting = '-1' then -1 else setting::bigint * 1024 * 1024 end
        from pg_settings where name = 'max_slot_wal_keep_size')
"""
# People may write to the table, too: only offsets of ours say how far the sync is.
_APPLIED = """
select max(ds_offset) from session_events
where stream_name = %s and ds_offset ~ '^[0-9]{16}_[0-9]{16}$'
"""


@dataclass(frozen=True)
class SlotState:
    name: str
    active: bool
    status: str
    retained_bytes: int
    confirmed: int

    def warning(self, limit_bytes: int) -> str | None:
        """What a person should know about this slot, if anything."""
        if self.status == "lost":
            return (
                f"The slot {self.name} is lost: Postgres no longer has the changes it needs. The "
                "sync takes a fresh snapshot when it runs; a forgotten slot should be dropped."
            )
        bounded = limit_bytes > 0
        threshold = limit_bytes * WARN_SHARE if bounded else UNBOUNDED_WARN_BYTES
        if self.retained_bytes < threshold and self.status != "unreserved":
            return None
        held = f"The slot {self.name} holds {self.retained_bytes / 2**20:.0f} MiB of log"
        reader = "is read" if self.active else "has no reader"
        if bounded:
            return (
                f"{held} of at most {limit_bytes / 2**20:.0f} MiB and {reader}: at the limit "
                "Postgres drops it. Start what reads it, or drop the slot."
            )
        return (
            f"{held} and {reader}; max_slot_wal_keep_size is unset, so it may fill the disk. Set "
            "it, start what reads the slot, or drop the slot."
        )


@dataclass
class Findings:
    """The last look."""

    up: bool = False
    slots: list[SlotState] = field(default_factory=list)
    limit_bytes: int = -1
    lags: dict[str, Lag] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        found = [slot.warning(self.limit_bytes) for slot in self.slots]
        return [warning for warning in found if warning is not None]


class Monitor:
    """Looks once a second; `stream` and `table` are the pair that each direction is measured by."""

    def __init__(
        self,
        postgres_url: str,
        server_url: str,
        *,
        slot: str = "",
        table: str = "items",
        stream: str = "session-events",
        stream_root: str = "/v1/stream",
    ) -> None:
        self._postgres_url = postgres_url
        self._stream_url = f"{server_url}{stream_root}/{stream}"
        self._slot, self._table, self._stream = slot, table, stream
        self._ends = {TO_STREAM: Behind(), TO_POSTGRES: Behind()}
        self._http = httpx.Client(timeout=5, trust_env=False)
        self._warned: set[str] = set()
        self.findings = Findings()

    def close(self) -> None:
        self._http.close()

    def poll(self, now: float) -> Findings:
        """Measure Postgres and the server; raises the error of whichever client fails."""
        found = Findings(up=True)
        with psycopg.connect(self._postgres_url, connect_timeout=5) as connection:
            found.slots = [SlotState(*row) for row in connection.execute(_SLOTS)]
            row = connection.execute(_END, (self._table,)).fetchone()
            assert row is not None, "a select without a table has one row"
            end, changes, found.limit_bytes = row
            applied = connection.execute(_APPLIED, (self._stream,)).fetchone()
            followed = self._slot or default_slot(connection)
        self._ends[TO_STREAM].saw(now, end, changes)
        confirmed = next((s.confirmed for s in found.slots if s.name == followed), None)
        if confirmed is not None:
            found.lags[TO_STREAM] = self._ends[TO_STREAM].lag(now, confirmed)
        tail = _messages(self._tail())
        self._ends[TO_POSTGRES].saw(now, tail, tail)
        done = _messages(applied[0] if applied else None)
        found.lags[TO_POSTGRES] = self._ends[TO_POSTGRES].lag(now, done)
        return found

    def _tail(self) -> str | None:
        answer = self._http.head(self._stream_url)
        if answer.status_code in (404, 410):
            return None
        answer.raise_for_status()
        tail: str | None = answer.headers.get("stream-next-offset")
        return tail

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self.findings = self.poll(time.time())
            except (psycopg.Error, httpx.HTTPError) as error:
                if self.findings.up:
                    logger.warning("cannot measure the sync: %s", str(error).strip() or repr(error))
                self.findings = Findings()
            for warning in self.findings.warnings:
                name = warning.split(" holds ")[0]
                if name not in self._warned:
                    logger.warning("%s", warning)
                self._warned.add(name)
            stop.wait(EVERY_SECS)


def _messages(offset: str | None) -> int:
    return 0 if offset is None else parse_token(offset).messages


def metrics(found: Findings) -> bytes:
    """The findings as Prometheus reads them."""
    registry = CollectorRegistry()

    def gauge(name: str, *labels: str) -> Gauge:
        return Gauge(name, METRICS[name], labels, registry=registry)

    gauge("headrace_sync_monitor_up").set(found.up)
    seconds, rows = (
        gauge(name, "direction") for name in ("headrace_sync_lag_seconds", "headrace_sync_lag_rows")
    )
    for direction, lag in found.lags.items():
        seconds.labels(direction).set(lag.seconds)
        rows.labels(direction).set(lag.rows)
    retained = gauge("headrace_slot_retained_bytes", "slot")
    active = gauge("headrace_slot_active", "slot")
    for slot in found.slots:
        retained.labels(slot.name).set(slot.retained_bytes)
        active.labels(slot.name).set(slot.active)
    gauge("headrace_slot_limit_bytes").set(found.limit_bytes)
    return generate_latest(registry)


def serve(monitor: Monitor, host: str, port: int, rules: HostRules) -> None:
    class MonitorHandler(PageHandler):
        hosts = rules

        def do_GET(self) -> None:  # noqa: N802
            if self.path == "/metrics":
                self._answer("text/plain; version=0.0.4", metrics(monitor.findings))
            elif self.path == "/warnings":
                self._answer("application/json", json.dumps(monitor.findings.warnings).encode())
            elif self.path == "/healthz":
                self._answer("text/plain", b"ok")
            else:
                self.send_error(404)

        def _answer(self, content_type: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not news."""

    stop = threading.Event()
    looking = threading.Thread(target=monitor.run, args=(stop,), daemon=True)
    looking.start()
    with ThreadingHTTPServer((host, port), MonitorHandler) as server:
        server.serve_forever()
