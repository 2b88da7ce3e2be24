"""Health: whether the process listens, and whether it should be sent traffic."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import Draining, HeadraceError, Overloaded
from headrace.http.exchange import Exchange, Request
from headrace.protocol import responses
from headrace.protocol.responses import OK, Response

_OK = Response(OK, b"Content-Type: text/plain\r\nCache-Control: no-store\r\n", b"ok")


class Health:
    def __init__(self, write_refusal: Callable[[], HeadraceError | None]) -> None:
        self._write_refusal = write_refusal
        self.draining = False

    def healthz(self, request: Request, exchange: Exchange) -> None:
        request.operation = "health"
        exchange.respond(_OK)

    def readyz(self, request: Request, exchange: Exchange) -> None:
        request.operation = "health"
        refusal = Draining() if self.draining else self._write_refusal()
        if isinstance(refusal, Overloaded):
            refusal = None  # over in a moment, and nothing to readers
        exchange.respond(_OK if refusal is None else responses.problem(refusal))
