"""Appends and creations with large JSON bodies: validated in slices, then decided.

Nothing is decided before the whole body is known to be JSON, and then everything at once, as for
a small body. A connection sends one request at a time, so its order holds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

import msgspec

from headrace.engine.creation import CreateOutcome
from headrace.engine.engine import AppendOutcome, Engine
from headrace.engine.slices import Slices
from headrace.errors import Refused, StreamDeleted, StreamNotFound
from headrace.http.exchange import Exchange, Request
from headrace.http.fault_answers import fault_answer
from headrace.http.handlers.body_work import BodyWork
from headrace.protocol.headers import JSON, media_type
from headrace.protocol.json_mode import LARGE_BYTES_MIN, Logged, log_form_steps
from headrace.protocol.requests import Append, Create

Refuse = Callable[[Exchange, StreamNotFound | StreamDeleted], None]


class LargeJson:
    def __init__(self, engine: Engine, slices: Slices) -> None:
        self._engine = engine
        self._slices = slices

    def append(
        self,
        name: str,
        command: Append,
        request: Request,
        exchange: Exchange,
        reply: Callable[[AppendOutcome], None],
        refuse: Refuse,
    ) -> None:
        def work() -> Iterator[None]:
            logged = yield from self._parse(command.body)
            try:
                stream = self._engine.find(name)  # another by now, perhaps, or gone
            except (StreamNotFound, StreamDeleted) as refusal:
                refuse(exchange, refusal)
                return
            self._engine.append(stream, msgspec.structs.replace(command, logged=logged), reply)

        self._slices.run(BodyWork(request, exchange, work), fault_answer(exchange))

    def create(
        self,
        name: str,
        command: Create,
        request: Request,
        exchange: Exchange,
        reply: Callable[[CreateOutcome], None],
    ) -> None:
        def work() -> Iterator[None]:
            logged = yield from self._parse(command.body)
            self._engine.create(name, replace(command, logged=logged), reply)

        self._slices.run(BodyWork(request, exchange, work), fault_answer(exchange))

    def _parse(self, body: bytes) -> Generator[None, None, Logged | Refused]:
        limits = self._engine.limits
        try:
            return (
                yield from log_form_steps(
                    body, limits.json_body_bytes_max, limits.append_messages_max
                )
            )
        except Refused as refusal:
            return refusal.with_traceback(None)  # which holds the body


def is_large(command: Create) -> bool:
    """Whether the initial content of a stream may be large JSON."""
    if len(command.body) < LARGE_BYTES_MIN:
        return False
    # A fork without a content type has its source's.
    return command.content_type is None or media_type(command.content_type) == JSON
