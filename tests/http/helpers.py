"""What the tests of the running server say often."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from headrace.testing.raw_http import RawConnection
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import live_readers
from headrace.testing.waiting import DEADLINE_SECS, eventually

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
CLOSE = {"Stream-Closed": "true"}
KIB = 1024
MIB = 1024 * KIB


@contextmanager
def client_of(server: ServerProcess, **options: Any) -> Iterator[httpx.Client]:
    """A client of a server with settings of its own."""
    with httpx.Client(base_url=server.url, timeout=DEADLINE_SECS, **options) as client:
        yield client


def problem_of(response: httpx.Response) -> str:
    """The last part of a problem's type, once the document is what RFC 9457 says."""
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == response.status_code
    assert {"type", "title", "detail"} <= set(document)
    prefix, _, name = document["type"].rpartition(":")
    assert prefix == "urn:headrace:problem"
    return str(name)


def await_readers(client: httpx.Client, mode: str, count: int) -> None:
    """Wait until so many live reads of one mode are attached."""
    eventually(lambda: live_readers(client, mode) == count, f"{count} {mode} readers")


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * KIB


def await_server_time(server: ServerProcess, secs: int) -> None:
    """Wait until the server's own clock has moved on by whole seconds, and its timers with it."""
    with RawConnection(server.port) as connection:

        def now() -> float:
            date = connection.request("GET", "/healthz").headers["date"]
            return parsedate_to_datetime(date).timestamp()

        start = now()
        eventually(lambda: now() >= start + secs, f"{secs} seconds on the server's clock")
