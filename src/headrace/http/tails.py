"""`POST {root}/__ds/tails`: the tails of many streams, now or once one of them has moved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.engine.bounded import seek
from headrace.engine.engine import Engine
from headrace.engine.reads import start_position
from headrace.engine.tails import Stream
from headrace.errors import (
    HeadraceError,
    InvalidRequest,
    MethodNotAllowed,
    StreamDeleted,
    StreamNotFound,
    StreamSetAside,
)
from headrace.http.exchange import Exchange, Request
from headrace.http.live import LiveReads
from headrace.protocol import responses
from headrace.protocol.offsets import Position
from headrace.protocol.requests import Live, parse_query
from headrace.protocol.tails import TailQuery, describe, describe_problem, parse_tails


class TailRoutes:
    def __init__(self, engine: Engine, live: LiveReads) -> None:
        self._engine = engine
        self._live = live

    def handle(
        self, request: Request, exchange: Exchange, query: bytes, name_of: Callable[[str], str]
    ) -> None:
        """`name_of` gives the engine's name of a stream, and refuses what cannot be one."""
        request.operation = "tails"
        if request.method != b"POST":
            raise MethodNotAllowed("POST, OPTIONS")
        live = parse_query(query.decode("latin-1")).get("live")
        if live not in (None, Live.LONG_POLL):
            raise InvalidRequest("The tails of many streams are read at once or by long-poll.")
        queries = parse_tails(request.body, name_of)
        if live is not None:
            waiting = self._all_at_tail(queries)
            if waiting is not None:
                TailsPoll(self._live, waiting, exchange, lambda: self._answer(queries, exchange))
                return
        self._answer(queries, exchange)

    def _all_at_tail(self, queries: list[TailQuery]) -> list[Stream] | None:
        """The streams to wait at; None where one has something to say already."""
        if not queries or any(query.start is None for query in queries):
            raise InvalidRequest("A long-poll needs the offset of each stream, in from.")
        streams: list[Stream] = []
        for query in queries:
            try:
                stream = self._find(query)
            except HeadraceError:
                return None
            if query.start != stream.visible:
                return None
            streams.append(stream)
        return streams

    def _find(self, query: TailQuery) -> Stream:
        stream = self._engine.find(query.name)
        if not stream.born:
            raise StreamNotFound(query.name)
        return stream

    def _answer(self, queries: list[TailQuery], exchange: Exchange) -> None:
        answer = _Answer(exchange, len(queries))
        for index, query in enumerate(queries):
            self._describe(query, partial(answer.put, index))
        answer.settle()

    def _describe(self, query: TailQuery, put: Callable[[dict[str, Any]], None]) -> None:
        try:
            stream = self._find(query)
        except (StreamNotFound, StreamDeleted, StreamSetAside) as refusal:
            # Not there is an answer like any other: it waits until it is certain.
            missing = describe_problem(query, refusal)
            self._engine.settle(
                query.name,
                lambda: put(missing),
                lambda error: put(describe_problem(query, error)),
            )
            return
        try:
            start = None if query.start is None else start_position(stream, query.start)
        except HeadraceError as refusal:
            put(describe_problem(query, refusal, stream.state))
            return
        described = describe(query, stream.state, stream.visible, closed=stream.visible_closed)
        if start is None or not query.seeks:
            put(described)
            return

        def sought(found: Position | HeadraceError) -> None:
            if isinstance(found, HeadraceError):
                put(describe_problem(query, found, stream.state))
            else:
                put({**described, "until_offset": found.token()})

        seek(self._engine, stream, start, query.messages_max, query.bytes_max, sought)


class _Answer:
    """Collects what each stream says; answers when the last of them has."""

    def __init__(self, exchange: Exchange, count: int) -> None:
        self._exchange = exchange
        self._found: list[dict[str, Any] | None] = [None] * count
        self._missing = count + 1

    def put(self, index: int, found: dict[str, Any]) -> None:
        self._found[index] = found
        self.settle()

    def settle(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            document = {"streams": self._found}
            self._exchange.respond(responses.json_document(responses.OK, document))


class TailsPoll:
    """Waits at the tails of many streams, until one moves, the time is up or the client leaves."""

    def __init__(
        self,
        live: LiveReads,
        streams: list[Stream],
        exchange: Exchange,
        answer: Callable[[], None],
    ) -> None:
        self._live = live
        self._exchange = exchange
        self._streams = streams
        self._answer_now = answer
        for stream in streams:
            stream.attach_watcher(self)
        live.long_poll_count += 1
        live.long_polls.add(self)
        exchange.hold(self)

    def on_advance(self, stream: Stream) -> None:
        self._answer()

    def on_gone(self, stream: Stream) -> None:
        self._answer()

    def on_deadline(self) -> None:
        self._answer()

    def on_drain(self) -> None:
        self._answer()

    def on_fault(self, fault: HeadraceError) -> None:
        self._detach()
        self._exchange.respond(responses.problem(fault))

    def on_disconnect(self) -> None:
        self._detach()

    def on_writable(self) -> None:
        """Nothing was sent yet."""

    def _answer(self) -> None:
        if self._detach():
            self._answer_now()

    def _detach(self) -> bool:
        """Leave every tail; False where that was done before."""
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.detach_watcher(self)
        if streams:
            self._live.long_polls.remove(self)
            self._live.long_poll_count -= 1
        return bool(streams)
