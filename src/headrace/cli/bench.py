"""`headrace bench`: how many requests a server answers, and how long each waits.

A closed loop: every connection sends its next request when the last one is answered. `append`
appends; `read` reads streams from their beginning to their end, again and again. For a comparison
with the reference server see bench/ in the repository; this looks at one server of yours, wherever
it is.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import quantiles
from typing import TYPE_CHECKING, Annotated, Any, cast
from urllib.parse import urlsplit

import httptools
import typer

from headrace.cli import printing
from headrace.cli.client_config import configured
from headrace.cli.options import EXIT_FAILED, fail
from headrace.cli.remote import JsonOption, TokenOption, UrlOption, connected
from headrace.protocol.offsets import BEGINNING

if TYPE_CHECKING:
    from headrace.client import Stream

CONTENT_TYPE = "application/octet-stream"
OK_STATUSES = (200, 204)
FILL_APPEND_BYTES = 64 * 1024


class Work(StrEnum):
    append = "append"
    read = "read"


@dataclass
class Load:
    """What all connections did together."""

    ends_at: float
    waits: list[float] = field(default_factory=list)
    body_bytes: int = 0
    """Appended, or read."""
    refused: int = 0
    broken: int = 0


class LoadConnection(asyncio.Protocol):
    """One connection of the closed loop; `done` when time is up or the connection broke."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parser: Any = httptools.HttpResponseParser(self)
        self._sent_at = 0.0

    def _request(self) -> bytes:
        """The next request."""
        raise NotImplementedError

    def _accepted(self) -> None:
        """The answer was complete, and a success."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self._load.broken += 1
            self.done.set_result(None)

    def on_message_complete(self) -> None:
        now, load = time.perf_counter(), self._load
        if now >= load.ends_at:
            self.done.set_result(None)
            self._transport.close()
            return
        if self._parser.get_status_code() in OK_STATUSES:
            load.waits.append(now - self._sent_at)
            self._accepted()
        else:
            load.refused += 1
        self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._request())


class LoadAppender(LoadConnection):
    """Appends the same body again and again."""

    def __init__(self, load: Load, head: bytes, body: bytes) -> None:
        super().__init__(load)
        self._message = head + body
        self._body_bytes = len(body)

    def _request(self) -> bytes:
        return self._message

    def _accepted(self) -> None:
        self._load.body_bytes += self._body_bytes


class CatchUpReader(LoadConnection):
    """Reads a stream from its beginning to its end, and begins again."""

    def __init__(self, load: Load, head: Callable[[str], bytes]) -> None:
        super().__init__(load)
        self._head = head
        self._offset = BEGINNING
        self._begin()

    def _begin(self) -> None:
        self._next_offset, self._up_to_date, self._received = BEGINNING, False, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"stream-next-offset":
                self._next_offset = value.decode("latin-1")
            case b"stream-up-to-date":
                self._up_to_date = True

    def on_body(self, data: bytes) -> None:
        self._received += len(data)

    def _request(self) -> bytes:
        self._begin()
        return self._head(self._offset)

    def _accepted(self) -> None:
        self._load.body_bytes += self._received
        self._offset = BEGINNING if self._up_to_date else self._next_offset


async def _drive(where: str, connect: list[Callable[[], LoadConnection]]) -> None:
    parts = urlsplit(where)
    loop = asyncio.get_running_loop()
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    finished = []
    for connection in connect:
        _, opened = await loop.create_connection(connection, parts.hostname or "", port, ssl=secure)
        finished.append(opened.done)
    await asyncio.gather(*finished)


@dataclass(frozen=True)
class Requests:
    """The heads of the requests to one server."""

    where: str
    token: str | None

    def append(self, path: str, size: int) -> bytes:
        fields = (f"Content-Type: {CONTENT_TYPE}", f"Content-Length: {size}")
        return self._head(f"POST {path}", *fields)

    def read(self, path: str) -> Callable[[str], bytes]:
        return lambda offset: self._head(f"GET {path}?offset={offset}")

    def _head(self, line: str, *fields: str) -> bytes:
        lines = [f"{line} HTTP/1.1", f"Host: {urlsplit(self.where).netloc}", *fields]
        if self.token:
            lines.append(f"Authorization: Bearer {self.token}")
        return "\r\n".join((*lines, "", "")).encode("latin-1")


def bench(
    work: Annotated[
        Work, typer.Argument(help="append: append messages. read: read streams whole.")
    ] = Work.append,
    connections: Annotated[
        int, typer.Option(min=1, max=10_000, help="Connections open at the same time.")
    ] = 64,
    streams: Annotated[
        int, typer.Option(min=1, max=10_000, help="Streams to append to or to read, in turn.")
    ] = 1,
    size: Annotated[int, typer.Option(min=1, max=1_000_000, help="Bytes per append.")] = 256,
    stream_mib: Annotated[
        int, typer.Option(min=1, max=1024, help="read: MiB that each stream holds.")
    ] = 8,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds to run.")] = 5.0,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Measure appends or reads per second and their latency, on streams of its own."""
    import uvloop

    where, bearer = configured(url, token)
    requests = Requests(where, bearer)
    names = [f"bench-{secrets.token_hex(6)}-{number}" for number in range(streams)]
    with connected(url, token) as client:
        made = [client.stream(name) for name in names]
        try:
            for stream in made:
                stream.create(CONTENT_TYPE)
                if work is Work.read:
                    _fill(stream, stream_mib * 2**20)
            paths = [urlsplit(stream.url).path for stream in made]
            started = time.perf_counter()
            load = Load(started + seconds)
            each = [
                _connection(work, load, requests, paths[number % streams], size)
                for number in range(connections)
            ]
            try:
                uvloop.run(_drive(where, each))
            except OSError as error:
                fail(f"{where} does not take {connections} connections: {error}", EXIT_FAILED)
            elapsed = time.perf_counter() - started
        finally:
            for stream in made:
                stream.delete()
    printing.facts(_summary(work, load, elapsed), as_json=as_json)


def _connection(
    work: Work, load: Load, requests: Requests, path: str, size: int
) -> Callable[[], LoadConnection]:
    if work is Work.read:
        head = requests.read(path)
        return lambda: CatchUpReader(load, head)
    return lambda: LoadAppender(load, requests.append(path, size), b"x" * size)


def _fill(stream: Stream, size: int) -> None:
    for _ in range(size // FILL_APPEND_BYTES):
        stream.append(b"x" * FILL_APPEND_BYTES)


def _summary(work: Work, load: Load, elapsed: float) -> dict[str, object]:
    waits = load.waits
    cuts = quantiles(waits, n=100) if len(waits) > 1 else [0.0] * 99
    return {
        f"{work.value}s": len(waits),
        f"{work.value}s_per_sec": round(len(waits) / elapsed),
        "mib_per_sec": round(load.body_bytes / elapsed / 2**20, 1),
        "p50_ms": round(cuts[49] * 1000, 3),
        "p99_ms": round(cuts[98] * 1000, 3),
        "refused": load.refused,
        "broken_connections": load.broken,
    }
