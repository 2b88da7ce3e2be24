"""What the answer to a webhook may cost to read: bounds below the HTTP parser.

A parser spends time on what never becomes a body: interim responses, chunk headers, trailers. So
bytes are counted where they leave the socket, and reach the parser TURN_BYTES at a time, with a
turn of the event loop for other work in between.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterable
from typing import Any, Final

from httpcore import AnyIOBackend, AsyncNetworkBackend, AsyncNetworkStream

ANSWER_BYTES_MAX: Final = 64 * 1024  # of the body; {"done": true} is 14
WIRE_BYTES_MAX: Final = 96 * 1024  # of all that is sent, framing included
HEADER_BYTES_MAX: Final = 16 * 1024  # at once, without any of the body; the default of Node.js
INTERIM_MAX: Final = 8  # proxies send one or two
PIECES_MAX: Final = 1000
TURN_BYTES: Final = 512

_INTERIM: Final = re.compile(rb"HTTP/1\.[01] 1\d\d")
_INTERIM_BYTES: Final = len(b"HTTP/1.1 100")


class AnswerTooCostly(Exception):
    """The answer of a receiver exceeds a bound; the text says which."""


class Intake:
    """Counts what one answer consists of."""

    def __init__(self) -> None:
        self._wire_bytes = 0
        self._header_bytes = 0
        self._interim = 0
        self._pieces = 0
        self._tail = b""  # a status line may be cut in two

    def add_wire(self, data: bytes) -> None:
        self._wire_bytes += len(data)
        self._header_bytes += len(data)
        # Interim responses come before a body. In one, the same bytes are content.
        if not self._pieces:
            seen = self._tail + data
            self._interim += len(_INTERIM.findall(seen))
            self._tail = seen[1 - _INTERIM_BYTES :]
        if self._interim > INTERIM_MAX:
            raise AnswerTooCostly(
                f"the receiver sent more than {INTERIM_MAX} interim (1xx) responses"
            )
        if self._wire_bytes > WIRE_BYTES_MAX:
            raise AnswerTooCostly(f"the receiver sent more than {WIRE_BYTES_MAX // 1024} KiB")
        if self._header_bytes > HEADER_BYTES_MAX:
            kib = HEADER_BYTES_MAX // 1024
            raise AnswerTooCostly(
                f"the receiver sent more than {kib} KiB of header or trailer fields"
            )

    def add_piece(self) -> None:
        """A part of the body came out of the parser."""
        self._header_bytes = 0
        self._pieces += 1
        if self._pieces > PIECES_MAX:
            raise AnswerTooCostly(f"the receiver sent its body in more than {PIECES_MAX} pieces")


class BoundedBackend(AsyncNetworkBackend):
    """Connects, for one request: what is read is counted in `intake`."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._connecting = AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        stream = await self._connecting.connect_tcp(
            host, port, timeout, local_address, socket_options
        )
        return _BoundedStream(stream, self._intake)


class _BoundedStream(AsyncNetworkStream):
    def __init__(self, stream: AsyncNetworkStream, intake: Intake) -> None:
        self._stream = stream
        self._intake = intake

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        # Neither TLS nor the operating system need wait while they have something buffered.
        await asyncio.sleep(0)
        data = await self._stream.read(min(max_bytes, TURN_BYTES), timeout)
        self._intake.add_wire(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> AsyncNetworkStream:
        stream = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        return _BoundedStream(stream, self._intake)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
