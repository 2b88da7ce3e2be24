"""`headrace bench`: how many appends a server takes, and how long each waits.

A closed loop: every connection sends its next append when the last one is answered. For a
comparison with the reference server see bench/ in the repository; this looks at one server of
yours, wherever it is.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from dataclasses import dataclass, field
from functools import partial
from statistics import quantiles
from typing import Annotated, Any, cast
from urllib.parse import urlsplit

import httptools
import typer

from headrace.cli import show
from headrace.cli.options import EXIT_FAILED, fail
from headrace.cli.remote import JsonOption, TokenOption, UrlOption, configured, connected

CONTENT_TYPE = "application/octet-stream"
OK_STATUSES = (200, 204)


@dataclass
class Load:
    """What all connections did together."""

    ends_at: float
    waits: list[float] = field(default_factory=list)
    refused: int = 0
    broken: int = 0


class Appender(asyncio.Protocol):
    """One connection of the closed loop; `done` when time is up or the connection broke."""

    def __init__(self, request: bytes, load: Load, done: asyncio.Future[None]) -> None:
        self._request = request
        self._load = load
        self._done = done
        self._parser: Any = httptools.HttpResponseParser(self)
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._load.broken += 1
            self._done.set_result(None)

    def on_message_complete(self) -> None:
        now, load = time.perf_counter(), self._load
        if now >= load.ends_at:
            self._finish()
        elif self._parser.get_status_code() in OK_STATUSES:
            load.waits.append(now - self._sent_at)
            self._send()
        else:
            load.refused += 1
            self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)

    def _finish(self) -> None:
        self._done.set_result(None)
        self._transport.close()


async def _drive(where: str, requests: list[bytes], load: Load) -> None:
    parts = urlsplit(where)
    loop = asyncio.get_running_loop()
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    finished = []
    for request in requests:
        done: asyncio.Future[None] = loop.create_future()
        finished.append(done)
        connect = partial(Appender, request, load, done)
        await loop.create_connection(connect, parts.hostname or "", port, ssl=secure)
    await asyncio.gather(*finished)


def _append_request(where: str, path: str, body: bytes, token: str | None) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {urlsplit(where).netloc}",
        f"Content-Type: {CONTENT_TYPE}",
        f"Content-Length: {len(body)}",
        *([f"Authorization: Bearer {token}"] if token else []),
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def bench(
    connections: Annotated[
        int, typer.Option(min=1, max=10_000, help="Connections open at the same time.")
    ] = 64,
    streams: Annotated[
        int, typer.Option(min=1, max=10_000, help="Streams to append to, in turn.")
    ] = 1,
    size: Annotated[int, typer.Option(min=1, max=1_000_000, help="Bytes per append.")] = 256,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds to run.")] = 5.0,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Measure appends per second and their latency, on streams of its own that it deletes."""
    import uvloop

    where, bearer = configured(url, token)
    names = [f"bench-{secrets.token_hex(6)}-{number}" for number in range(streams)]
    with connected(url, token) as client:
        made = [client.stream(name) for name in names]
        try:
            for stream in made:
                stream.create(CONTENT_TYPE)
            paths = [urlsplit(stream.url).path for stream in made]
            body = b"x" * size
            requests = [
                _append_request(where, paths[number % streams], body, bearer)
                for number in range(connections)
            ]
            started = time.perf_counter()
            load = Load(started + seconds)
            try:
                uvloop.run(_drive(where, requests, load))
            except OSError as error:
                fail(f"{where} does not take {connections} connections: {error}", EXIT_FAILED)
            elapsed = time.perf_counter() - started
        finally:
            for stream in made:
                stream.delete()
    show.facts(_summary(load, elapsed, size), as_json=as_json)


def _summary(load: Load, elapsed: float, size: int) -> dict[str, object]:
    waits = load.waits
    cuts = quantiles(waits, n=100) if len(waits) > 1 else [0.0] * 99
    return {
        "appends": len(waits),
        "appends_per_sec": round(len(waits) / elapsed),
        "mib_per_sec": round(len(waits) * size / elapsed / 2**20, 1),
        "p50_ms": round(cuts[49] * 1000, 3),
        "p99_ms": round(cuts[98] * 1000, 3),
        "refused": load.refused,
        "broken_connections": load.broken,
    }
