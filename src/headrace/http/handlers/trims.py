"""`POST {root}/__ds/trim`: a stream gives up its beginning.

A request of its own, and not DELETE with a parameter: a server that does not know the parameter
would delete the stream.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.engine.creation import REGISTRY_METHODS
from headrace.engine.engine import Engine
from headrace.errors import HeadraceError, MethodNotAllowed, StreamDeleted, StreamNotFound
from headrace.http.exchange import Exchange, Request
from headrace.http.permissions import Action
from headrace.protocol import responses
from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.offsets import Position
from headrace.protocol.trims import parse_trim


class TrimRoutes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def handle(self, request: Request, exchange: Exchange, name_of: Callable[[str], str]) -> None:
        """`name_of` gives the engine's name of a stream, and refuses what cannot be one."""
        request.operation = "trim"
        if request.method != b"POST":
            raise MethodNotAllowed("POST, OPTIONS")
        command = parse_trim(request.body)
        name = name_of(command.stream)
        if request.guard is not None:
            request.guard(Action.DELETE, name)
        if name == REGISTRY_NAME:
            raise MethodNotAllowed(REGISTRY_METHODS)

        def refuse(refusal: HeadraceError) -> None:
            exchange.respond(responses.problem(refusal))

        def reply(outcome: Position | HeadraceError) -> None:
            if isinstance(outcome, HeadraceError):
                refuse(outcome)
            else:
                document = {
                    "stream": command.stream,
                    "earliest_offset": outcome.token(),
                    "next_offset": stream.visible.token(),
                }
                exchange.respond(responses.json_document(responses.OK, document))

        try:
            stream = self._engine.find(name)
        except (StreamNotFound, StreamDeleted) as refusal:
            self._engine.refuse_when_durable(name, refusal, refuse)
        else:
            self._engine.trims.trim(stream, command, reply)
