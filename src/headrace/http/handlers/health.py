"""Health: whether the process listens, and whether it should be sent traffic."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import Draining, HeadraceError, Overloaded
from headrace.http.exchange import Exchange, Request
from headrace.protocol import responses
from headrace.protocol.responses import OK, Response

_HEADERS = b"Content-Type: text/plain\r\nCache-Control: no-store\r\n"
_OK = Response(OK, _HEADERS, b"ok")


class Health:
    def __init__(
        self,
        write_refusal: Callable[[], HeadraceError | None],
        set_aside: Callable[[], int] = int,
    ) -> None:
        """`set_aside` counts the streams that could not be recovered: the rest is served."""
        self._write_refusal = write_refusal
        self._set_aside = set_aside
        self.draining = False

    def healthz(self, request: Request, exchange: Exchange) -> None:
        request.operation = "health"
        exchange.respond(_OK)

    def readyz(self, request: Request, exchange: Exchange) -> None:
        request.operation = "health"
        refusal = Draining() if self.draining else self._write_refusal()
        if isinstance(refusal, Overloaded):
            refusal = None  # over in a moment, and nothing to readers
        if refusal is not None:
            exchange.respond(responses.problem(refusal))
            return
        count = self._set_aside()
        body = b"ok, but for %d streams that are set aside" % count
        exchange.respond(Response(OK, _HEADERS, body) if count else _OK)
