"""The head of every response: status line, date, security and CORS headers.

Formatted once a second and per status, because every response carries it. Keeps the coarse
clock that deadlines are set by, for the same reason.
"""

from __future__ import annotations

from email.utils import formatdate
from typing import Final

from headrace.clock import Clock
from headrace.http.cors import CorsPolicy
from headrace.protocol.headers import Headers
from headrace.protocol.responses import REASONS

TICK_SECS: Final = 1.0
_STATUS_LINES: Final = {
    status: b"HTTP/1.1 %d %b\r\n" % (status, reason) for status, reason in REASONS.items()
}


class ResponseHead:
    def __init__(self, clock: Clock, cors: CorsPolicy) -> None:
        self._clock = clock
        self._cors = cors
        self.tick()

    def tick(self) -> None:
        """Called every TICK_SECS."""
        self.now = self._clock.monotonic()
        date = f"Date: {formatdate(self._clock.now_ms() / 1000, usegmt=True)}\r\n".encode()
        for_everyone = self._cors.for_everyone
        self._varies = for_everyone is None
        self._heads = {
            status: status_line + date + (for_everyone or b"")
            for status, status_line in _STATUS_LINES.items()
        }

    def deadline(self, secs: float) -> float:
        """A moment at least `secs` from now, on a clock that is up to a tick behind."""
        return self.now + TICK_SECS + secs

    def lines(self, status: int, request_headers: Headers) -> bytes:
        head = self._heads[status]
        return head + self._cors.headers(request_headers) if self._varies else head
