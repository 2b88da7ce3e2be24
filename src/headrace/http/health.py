"""Health: whether the process listens, and whether it should be sent traffic."""

from __future__ import annotations

from headrace.errors import Draining
from headrace.http.exchange import Exchange, Request
from headrace.protocol import responses
from headrace.protocol.responses import OK, Response

_OK = Response(OK, b"Content-Type: text/plain\r\nCache-Control: no-store\r\n", b"ok")


class Health:
    def __init__(self) -> None:
        self.draining = False

    def healthz(self, request: Request, exchange: Exchange) -> None:
        request.operation = "health"
        exchange.respond(_OK)

    def readyz(self, request: Request, exchange: Exchange) -> None:
        request.operation = "health"
        exchange.respond(responses.problem(Draining()) if self.draining else _OK)
