"""Answers in windows: what waits for clients is counted, and clients that take nothing are left.

uvicorn takes whatever it is given, and waits for the client before it takes more. So a body is
given to it in windows, and one of them at most waits in its buffers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

HELD_BYTES_MAX: Final = 64 * 1024 * 1024
WINDOW_BYTES: Final = 64 * 1024
STALLED_SECS = 30.0  # as the server's http.body_timeout_secs


class Held:
    """Bytes that wait for clients, all of them together."""

    def __init__(self, bytes_max: int = HELD_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0

    @property
    def is_exceeded(self) -> bool:
        return self.bytes > self._bytes_max

    @contextmanager
    def holding(self, count: int) -> Iterator[None]:
        self.bytes += count
        try:
            yield
        finally:
            self.bytes -= count

    async def windows(self, body: bytes) -> AsyncIterator[bytes]:
        """The parts of a body, which counts until the last of them is taken."""
        with self.holding(len(body)):
            for at in range(0, len(body), WINDOW_BYTES):
                yield body[at : at + WINDOW_BYTES]


class ImpatientResponse(StreamingResponse):
    """Breaks off when a client has taken nothing for a while."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_stalled = False

        async def send_in_time(message: Message) -> None:
            nonlocal has_stalled
            try:
                await asyncio.wait_for(send(message), STALLED_SECS)
            except TimeoutError:
                has_stalled = True
                raise

        try:
            await super().__call__(scope, receive, send_in_time)
        except Exception:
            if not has_stalled:
                raise
