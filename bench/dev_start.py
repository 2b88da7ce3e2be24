"""How long `make dev` takes from nothing, until heartbeats are in all four places.

    python -m bench.dev_start                 in a directory of its own, on free ports
    python -m bench.dev_start --report FILE   and as JSON

Brings up the dev profile in an empty state directory, and says how long it takes until the table
is printed and until the first heartbeat is in `items`, `pg-items`, `session-events` and
`session_events`; then takes it down.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg

from bench.machine import describe
from headrace.testing.stack_process import StackProcess
from headrace.testing.waiting import eventually

DEADLINE_SECS = 600.0
TABLES = {
    "items": "select 1 from items where title like 'heartbeat%' limit 1",
    "session_events": "select 1 from session_events where event_type = 'heartbeat' limit 1",
}
STREAMS = ("pg-items", "session-events")


def in_table(stack: StackProcess, query: str) -> bool:
    url = stack.address("postgres").replace("postgres@", "postgres:password@")
    with suppress(psycopg.Error), psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchone() is not None
    return False


def in_stream(stack: StackProcess, name: str) -> bool:
    with suppress(httpx.TransportError):
        answer = httpx.get(f"{stack.address('server')}/v1/stream/{name}")
        return answer.is_success and "heartbeat" in answer.text
    return False


def measure(stack: StackProcess) -> dict[str, float]:
    """Seconds since `up`, in the order in which things came."""
    began = time.monotonic()
    stack.launch()
    waiting: dict[str, Callable[[], bool]] = {
        "the table is printed": lambda: (found := stack.state.read()) is not None and found.ready,
        **{n: lambda query=q: in_table(stack, query) for n, q in TABLES.items()},  # type: ignore[misc]
        **{n: lambda name=n: in_stream(stack, name) for n in STREAMS},  # type: ignore[misc]
    }
    came: dict[str, float] = {}

    def look() -> bool:
        if stack.state.read() is not None:
            for name in [name for name in waiting if name not in came and waiting[name]()]:
                came[name] = round(time.monotonic() - began, 1)
        return len(came) == len(waiting)

    eventually(look, "a heartbeat in every place", DEADLINE_SECS)
    return came


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--report", type=Path, help="write the figures here as JSON")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    home.chmod(0o755)  # as root, Postgres runs as another account
    report: dict[str, Any] = {"machine": describe(["python -m bench.dev_start", *sys.argv[1:]])}
    stack = StackProcess(home / "state", "dev")
    try:
        report["seconds"] = measure(stack)
    finally:
        stack.stop()
        shutil.rmtree(home, ignore_errors=True)
    print(json.dumps(report, indent=2))
    if given.report is not None:
        given.report.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
