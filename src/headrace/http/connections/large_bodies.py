"""Large bodies of a known length, received where they stay.

The kernel writes them into the bytes that the request will carry. On the way of all other bytes,
from the loop's buffer through the parser into parts that are joined, they are copied three times.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterable
from typing import Final

MISSING_BYTES_MIN: Final = 128 * 1024  # less comes sooner than the change of protocol pays


class LargeBody:
    """One body while it comes; `parts` are what came with its head."""

    def __init__(self, size: int, parts: Iterable[bytes]) -> None:
        # It hands over its bytes without a copy once no memoryview refers to them. They are
        # address space until the kernel writes to them: zeros of the allocator are not written.
        self._bytes = io.BytesIO(bytes(size))
        self._bytes.writelines(parts)
        self._view = self._bytes.getbuffer()
        self._received_bytes = self._bytes.tell()

    @property
    def is_complete(self) -> bool:
        return self._received_bytes == len(self._view)

    def room(self) -> memoryview:
        return self._view[self._received_bytes :]

    def add(self, count: int) -> None:
        self._received_bytes += count

    def take(self) -> bytes:
        """The whole body. Once."""
        self._view.release()
        return self._bytes.getvalue()


class BodyReceiver(asyncio.BufferedProtocol):
    """Replaces the connection as the transport's protocol until a large body is complete.

    A transport of uvloop keeps it beyond that, so `leave` has to be called.
    """

    def __init__(
        self, connection: asyncio.Protocol, body: LargeBody, on_received: Callable[[int], None]
    ) -> None:
        self._connection = connection
        self._body = body
        self._on_received = on_received

    def leave(self) -> None:
        # uvloop refers to its last protocol until the transport is gone: without this, to a body of
        # megabytes as well.
        del self._connection, self._body, self._on_received

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._body.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._body.add(nbytes)
        self._on_received(nbytes)

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
