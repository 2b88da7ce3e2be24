"""Routes of a stream: PUT, POST, GET, HEAD and DELETE on one stream URL."""

from __future__ import annotations

from collections.abc import Callable

from headrace.engine.creation import CreateOutcome
from headrace.engine.engine import Deleted, DeleteOutcome, Engine
from headrace.engine.range_reads import read_bounded
from headrace.engine.reads import ReadOutcome
from headrace.engine.stream_runtime import Stream
from headrace.errors import (
    HeadraceError,
    MethodNotAllowed,
    StreamDeleted,
    StreamNotFound,
)
from headrace.http.exchange import Exchange, Request
from headrace.http.handlers.large_json import LargeJson, is_large
from headrace.http.handlers.live import LiveReads, long_poll_answer
from headrace.http.handlers.reads import chunk_etag, chunk_response, is_private, tail_response
from headrace.http.permissions import BY_METHOD, Action
from headrace.http.url_schemes import UrlScheme
from headrace.protocol import caching, responses
from headrace.protocol.creation_defaults import CreationDefaults
from headrace.protocol.json_mode import LARGE_BYTES_MIN
from headrace.protocol.offsets import NOW
from headrace.protocol.requests import (
    Live,
    Read,
    append_like,
    parse_append,
    parse_create,
    parse_read,
)
from headrace.protocol.responses import Response, append_answer

METHODS = "GET, POST, PUT, DELETE, HEAD, OPTIONS"
Handler = Callable[[Request, Exchange, bytes, bytes], None]


class StreamRoutes:
    def __init__(
        self,
        engine: Engine,
        live: LiveReads,
        urls: UrlScheme,
        large: LargeJson,
        defaults: CreationDefaults,
    ) -> None:
        self._engine = engine
        self._live = live
        self._large = large
        self._urls = urls
        self._defaults = defaults
        self._name = urls.name
        self._handlers: dict[bytes, Handler] = {
            b"POST": self._append,
            b"GET": self._read,
            b"HEAD": self._head,
            b"PUT": self._create,
            b"DELETE": self._delete,
        }

    def handle(self, request: Request, exchange: Exchange, target: bytes) -> None:
        """`target` is the request target below the stream root: a name and perhaps a query."""
        handler = self._handlers.get(request.method)
        if handler is None:
            raise MethodNotAllowed(METHODS)
        path, _, query = target.partition(b"?")
        if request.guard is not None:
            request.guard(BY_METHOD[request.method], self._name(path))
        try:
            handler(request, exchange, path, query)
        except (StreamNotFound, StreamDeleted) as refusal:
            self.refuse(exchange, refusal)

    def refuse(self, exchange: Exchange, refusal: StreamNotFound | StreamDeleted) -> None:
        """Answer that a stream does not exist, once that is durable."""
        explained = self._urls.explain(refusal)
        self._engine.refuse_when_durable(
            refusal.stream, explained, lambda error: exchange.respond(responses.problem(error))
        )

    def find_visible(self, path: bytes) -> Stream:
        return self._engine.find_visible(self._name(path))

    def _append(self, request: Request, exchange: Exchange, path: bytes, query: bytes) -> None:
        request.operation = "append"
        stream = self._engine.find(self._name(path))
        parsed_head = request.parsed_head
        if parsed_head is not None and parsed_head.model is not None:
            command = append_like(parsed_head.model, request.headers, request.body)
        else:
            command = parse_append(request.headers, request.body)
            if parsed_head is not None and command.body:
                parsed_head.model = append_like(command, request.headers, b"")
        respond = exchange.respond
        if len(request.body) >= LARGE_BYTES_MIN and stream.state.is_json:
            self._large.append(
                stream.state.name,
                command,
                request,
                exchange,
                lambda outcome: respond(append_answer(outcome)),
                self.refuse,
            )
            return
        self._engine.append(stream, command, lambda outcome: respond(append_answer(outcome)))

    def _create(self, request: Request, exchange: Exchange, path: bytes, query: bytes) -> None:
        request.operation = "create"
        name = self._urls.checked_name(path)
        asked = parse_create(request.headers, request.body, self._urls.source_of(request, name))
        if request.guard is not None and asked.fork is not None:
            request.guard(Action.READ, asked.fork.source)
        existing = self._engine.streams.get(name)
        command = self._defaults.fill(name, asked, existing.state.config if existing else None)
        location = self._urls.url(request, name)

        def reply(outcome: CreateOutcome) -> None:
            exchange.respond(_create_response(outcome, location))

        if is_large(command):
            self._large.create(name, command, request, exchange, reply)
        else:
            self._engine.create(name, command, reply)

    def _delete(self, request: Request, exchange: Exchange, path: bytes, query: bytes) -> None:
        request.operation = "delete"
        name = self._urls.checked_name(path)
        self._engine.delete(name, lambda outcome: exchange.respond(_delete_response(outcome)))

    def _head(self, request: Request, exchange: Exchange, path: bytes, query: bytes) -> None:
        request.operation = "head"
        stream = self.find_visible(path)
        exchange.respond(
            responses.metadata(
                stream.state,
                stream.visible,
                closed=stream.visible_closed,
                snapshot=stream.visible_snapshot,
            )
        )

    def _read(self, request: Request, exchange: Exchange, path: bytes, query: bytes) -> None:
        request.operation = "read"
        stream = self.find_visible(path)
        self.read(request, exchange, stream, parse_read(query.decode("latin-1")))

    def read(self, request: Request, exchange: Exchange, stream: Stream, read: Read) -> None:
        """Answer a read of `stream`; raises what is wrong with its offset."""
        request.operation = "read"
        engine = self._engine
        start = engine.start_position(stream, read.start)
        engine.touch(stream)
        if read.live is Live.SSE:
            request.operation = "sse"
            self._live.events(stream, start, read, exchange)
        elif read.live is Live.LONG_POLL:
            request.operation = "long-poll"
            private = is_private(request)
            if start == stream.visible and not stream.visible_closed:
                self._live.long_poll(stream, start, read, exchange, private)
                return
            cursor = self._live.cursor(read.cursor)
            engine.read(
                stream,
                start,
                lambda found: exchange.respond(
                    long_poll_answer(engine, stream, found, cursor, private)
                ),
            )
        elif read.bounds is not None:
            framed = read.bounds.framed
            read_bounded(
                engine,
                stream,
                start,
                read.bounds,
                lambda found: exchange.respond(
                    self._catch_up(request, stream, found, framed=framed)
                ),
            )
        elif read.start == NOW:
            exchange.respond(tail_response(stream))
        else:
            engine.read(
                stream,
                start,
                lambda found: exchange.respond(self._catch_up(request, stream, found)),
            )

    def _catch_up(
        self, request: Request, stream: Stream, found: ReadOutcome, *, framed: bool = False
    ) -> Response:
        if isinstance(found, HeadraceError):
            return responses.problem(found)
        private = is_private(request)
        response = chunk_response(self._engine, stream, found, private=private, framed=framed)
        held = request.headers.get(b"if-none-match")
        if held is not None and caching.matches(held, chunk_etag(stream, found)):
            return responses.not_modified(response)
        return response


def _create_response(outcome: CreateOutcome, location: str) -> Response:
    if isinstance(outcome, HeadraceError):
        return responses.problem(outcome)
    return responses.stream_put(
        outcome.state.config.content_type,
        outcome.tail,
        closed=outcome.closed,
        location=location if outcome.created else None,
    )


def _delete_response(outcome: DeleteOutcome) -> Response:
    return responses.deleted() if isinstance(outcome, Deleted) else responses.problem(outcome)
