"""Errors of work that goes on outside of its request's call: answered like those inside."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import HeadraceError
from headrace.faults import internal_fault
from headrace.http.exchange import Exchange
from headrace.protocol import responses


def fault_answer(exchange: Exchange) -> Callable[[Exception], None]:
    """What to do with an error, while it is being handled, that ends work for `exchange`."""

    def answer(error: Exception) -> None:
        fault = error if isinstance(error, HeadraceError) else internal_fault("a request")
        exchange.respond(responses.problem(fault))

    return answer
