"""The Shape API: `GET /v1/shape` as Electric's clients expect it, over long-poll and SSE.

Electric lets every web page read. Here there is no authentication and the tables are a
developer's, so pages of other origins read nothing unless they are listed (`AccessRules`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any

import httpx
import orjson
import psycopg
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import HeadraceError
from headrace.protocol.access import HostRules, OriginRules
from headrace.shapes.definition import (
    BEFORE_ALL,
    BadRequest,
    Definition,
    Offset,
    offset_text,
    parse_offset,
)
from headrace.shapes.logs import CHUNK_BYTES, LogBroken, LogChunk
from headrace.shapes.sending import Held, ImpatientResponse
from headrace.shapes.service import Shape, Shapes, TableChanged, TooManyShapes
from headrace.shapes.subsets import Subset

LONG_POLL_SECS = 20.0
SSE_SECS = 60.0
KEEP_ALIVE_SECS = 20.0
MAKE_SECS = 60.0
RETRY_AFTER_SECS = 5
BODY_BYTES_MAX = 64 * 1024
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
EXPOSED = (
    "electric-cursor",
    "electric-handle",
    "electric-has-data",
    "electric-offset",
    "electric-schema",
    "electric-up-to-date",
    "retry-after",
)
# As Electric's: the snapshot is for ever, history for a while, a live answer for moments.
CACHE_SNAPSHOT = "public, max-age=604800, s-maxage=3600, stale-while-revalidate=2629746"
CACHE_HISTORY = "public, max-age=60, stale-while-revalidate=300"
CACHE_LIVE = "public, max-age=5, stale-while-revalidate=5"
CACHE_SSE = "public, max-age=59"
MUST_REFETCH = {"headers": {"control": "must-refetch"}}
logger = logging.getLogger(__name__)


class ShapeRequest:
    """The query parameters of one request, validated."""

    def __init__(self, query: Mapping[str, str], subset: Subset | None = None) -> None:
        self.subset = Subset.of_query(query) if subset is None else subset
        self.definition = Definition.parse(query)
        self.handle = query.get("handle") or None
        self.is_live = query.get("live") == "true"
        wants_sse = "true" in (query.get("live_sse"), query.get("experimental_live_sse"))
        self.is_sse = self.is_live and wants_sse
        self.cursor = query.get("cursor") or ""
        self.offset_text = query.get("offset")
        if self.offset_text is None:
            raise BadRequest(offset="can't be blank")
        self.is_first = self.offset_text == "-1"
        self.is_now = self.offset_text == "now"
        self.offset = BEFORE_ALL
        if not self.is_first and not self.is_now:
            self.offset = parse_offset(self.offset_text)
            if self.handle is None:
                raise BadRequest(handle="can't be blank when offset != -1")
        if self.subset is None and self.is_live and (self.is_first or self.is_now):
            raise BadRequest(live="can't be true when offset == -1")


@dataclass(frozen=True)
class AccessRules:
    """The Host names the API answers to, the origins whose pages may read from it, and the secret
    that requests for shapes must carry, if there is one."""

    hosts: HostRules = field(default_factory=HostRules)
    origins: tuple[str, ...] = ()
    secret: str = field(default="", repr=False)

    def admits(self, query: Mapping[str, str]) -> bool:
        # Electric's clients of earlier versions call it api_secret.
        given = query.get("secret") or query.get("api_secret") or ""
        return not self.secret or compare_digest(given.encode(), self.secret.encode())


class _Guard:
    """Rejects other hosts and cross-origin writes before the request is parsed."""

    def __init__(self, app: ASGIApp, access: AccessRules) -> None:
        self._app = app
        self._hosts = access.hosts
        self._pages = OriginRules(access.origins)
        self._is_open = "*" in access.origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start" and not self._is_open:
                MutableHeaders(scope=message)["cross-origin-resource-policy"] = "same-origin"
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"")
        if not self._hosts.admits(host):
            name = host.decode("latin-1")
            return _problem(
                421, f"This server does not answer for the host {name!r}: see --allowed-hosts."
            )
        if not self._pages.admits(scope["method"].encode(), headers, [host]):
            return _problem(403, "A page of another origin may not do this: see --cors-origins.")
        return None


class ShapeApi:
    def __init__(
        self, shapes: Shapes, *, allow_deletion: bool = False, access: AccessRules | None = None
    ) -> None:
        self._shapes = shapes
        self._allow_deletion = allow_deletion
        self._access = access or AccessRules()
        self._held = Held()

    def application(self) -> Starlette:
        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            await self._shapes.start()
            yield
            await self._shapes.stop()

        routes = [
            Route("/v1/shape", self.get, methods=["GET"]),
            Route("/v1/shape", self.post, methods=["POST"]),
            Route("/v1/shape", self.delete, methods=["DELETE"]),
            Route("/v1/shape", self.options, methods=["OPTIONS"]),
            Route("/v1/health", self.health, methods=["GET"]),
        ]
        return Starlette(routes=routes, middleware=self._middleware(), lifespan=lifespan)

    def _middleware(self) -> list[Middleware]:
        guard = Middleware(_Guard, access=self._access)
        if not self._access.origins:
            return [guard]
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(self._access.origins),
            allow_methods=METHODS,
            allow_headers=["*"],
            expose_headers=list(EXPOSED),
        )
        return [guard, cors]

    async def health(self, request: Request) -> Response:
        if self._shapes.failure is not None:
            return JSONResponse({"status": "failed"}, status_code=503)
        return JSONResponse({"status": "active"}, headers={"cache-control": "no-store"})

    async def options(self, request: Request) -> Response:
        return Response(status_code=204, headers={"allow": ", ".join(METHODS)})

    async def delete(self, request: Request) -> Response:
        if not self._access.admits(request.query_params):
            return _unauthorized()
        if not self._allow_deletion:
            return _problem(405, "Deleting shapes is switched off here.")
        handle = request.query_params.get("handle")
        try:
            if handle is not None:
                shape = self._shapes.by_handle(handle)
            else:
                shape = self._shapes.by_definition(Definition.parse(request.query_params))
        except BadRequest as error:
            return _invalid(error)
        if shape is None:
            return _problem(404, "There is no shape with this handle or definition.")
        await asyncio.to_thread(self._shapes.drop, shape)
        return Response(status_code=202)

    async def post(self, request: Request) -> Response:
        """A subset whose parameters are too long for a URL."""
        if not self._access.admits(request.query_params):
            return _unauthorized()
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > BODY_BYTES_MAX:
                return _problem(413, f"The body exceeds {BODY_BYTES_MAX} bytes.")
        return await self._respond(request, body)

    async def get(self, request: Request) -> Response:
        return await self._respond(request, None)

    async def _respond(self, request: Request, body: bytes | None) -> Response:
        if not self._access.admits(request.query_params):
            return _unauthorized()
        if self._shapes.failure is not None:
            return _unavailable("Shapes are no longer followed; see the log.")
        try:
            subset = None if body is None else Subset.of_body(body)
            params = ShapeRequest(request.query_params, subset)
            shape = await asyncio.wait_for(self._shapes.get(params.definition), MAKE_SECS)
            return await self._answer(request, params, shape)
        except BadRequest as error:
            return _invalid(error)
        except psycopg.errors.LockNotAvailable:
            return _unavailable("The table is locked by a long transaction; try again.")
        except (psycopg.Error, TooManyShapes, TableChanged, TimeoutError, httpx.HTTPError) as error:
            return _unavailable(str(error).strip() or type(error).__name__)
        except HeadraceError as error:
            return _unavailable(error.detail)

    async def _answer(self, request: Request, params: ShapeRequest, shape: Shape) -> Response:
        if params.handle is not None and params.handle != shape.handle:
            return _refetch(shape)
        if self._held.is_exceeded:
            return _unavailable("Too much waits for clients that do not take it; try again.")
        if params.subset is not None:
            return await self._subset(shape, params.subset)
        if params.is_sse:
            return self._events(params, shape)
        start = shape.log.last if params.is_now else params.offset
        lsn = self._shapes.last_lsn
        chunk = await self._behind(shape, start)
        if params.is_live and not chunk.entries:
            await self._news(shape, start, LONG_POLL_SECS)
            lsn = self._shapes.last_lsn
            chunk = await self._behind(shape, start)
        if shape.is_dropped:
            return _refetch(None)
        return self._chunk(request, params, shape, chunk, lsn)

    async def _behind(self, shape: Shape, start: Offset) -> LogChunk:
        """Entries behind a place; none of a shape that is dropped, or now found to be broken."""
        if shape.is_dropped:
            return LogChunk([], start)
        try:
            return await shape.log.read(start)
        except LogBroken as error:
            logger.warning("shape %s cannot be read: %s", shape.handle, error)
            await asyncio.to_thread(self._shapes.drop, shape)
            return LogChunk([], start)

    async def _subset(self, shape: Shape, subset: Subset) -> Response:
        headers = {
            "electric-handle": shape.handle,
            # From before the rows were read: what comes behind it may be in them, but not missing.
            "electric-offset": offset_text(shape.log.last),
            "electric-schema": shape.table.schema_header,
            "cache-control": "no-store",
        }
        body = await asyncio.to_thread(self._shapes.subset, shape, subset)
        headers["content-length"] = str(len(body))
        windows = self._held.windows(body)
        return ImpatientResponse(windows, headers=headers, media_type="application/json")

    async def _news(self, shape: Shape, start: Offset, secs: float) -> bool:
        """Wait until there is something to say: more in the log, a shape or a server that goes.

        Whether there is.
        """
        news = shape.news
        if shape.log.last > start or shape.is_dropped or self._shapes.is_draining:
            return True
        shape.readers += 1
        try:
            await asyncio.wait_for(news.wait(), secs)
        except TimeoutError:
            return False
        finally:
            shape.readers -= 1
        return True

    def _chunk(
        self, request: Request, params: ShapeRequest, shape: Shape, chunk: LogChunk, lsn: int
    ) -> Response:
        end = (0, 0.0) if chunk.end == BEFORE_ALL else chunk.end
        # The first answer never says that it is the whole: a cache keeps it for long.
        is_up_to_date = not params.is_first and chunk.is_whole
        state = "whole" if is_up_to_date else "part"
        etag = f'"{shape.handle}:{params.offset_text}:{offset_text(end)}:{state}"'
        headers = {
            "electric-handle": shape.handle,
            "electric-offset": offset_text(end),
            "electric-has-data": "true" if chunk.entries else "false",
            "etag": etag,
        }
        if params.is_live:
            headers |= {"electric-cursor": _cursor(params.cursor), "cache-control": CACHE_LIVE}
        else:
            headers["electric-schema"] = shape.table.schema_header
            headers["cache-control"] = CACHE_SNAPSHOT if params.is_first else CACHE_HISTORY
            if request.headers.get("if-none-match") == etag:
                return Response(status_code=304, headers=headers)
        entries = chunk.entries
        if is_up_to_date:
            headers["electric-up-to-date"] = ""
            entries = [*entries, _up_to_date(lsn, end)]
        body = orjson.dumps(entries)
        headers["content-length"] = str(len(body))
        windows = self._held.windows(body)
        return ImpatientResponse(windows, headers=headers, media_type="application/json")

    def _events(self, params: ShapeRequest, shape: Shape) -> Response:
        headers = {
            "electric-handle": shape.handle,
            "electric-offset": offset_text(params.offset),
            "electric-cursor": _cursor(params.cursor),
            "electric-schema": shape.table.schema_header,
            "cache-control": CACHE_SSE,
            "x-accel-buffering": "no",
        }
        body = self._event_stream(shape, params.offset)
        return ImpatientResponse(body, headers=headers, media_type="text/event-stream")

    async def _event_stream(self, shape: Shape, at: Offset) -> AsyncIterator[bytes]:
        ends_at = time.monotonic() + SSE_SECS
        is_whole = True
        # Clients discard the events of a connection that ends without an up-to-date.
        while not self._shapes.is_draining and (not is_whole or time.monotonic() < ends_at):
            if self._held.is_exceeded:
                return  # the client goes on from its last event when there is room
            lsn = self._shapes.last_lsn
            try:
                chunk = await self._behind(shape, at)
            except (HeadraceError, httpx.HTTPError) as error:
                logger.warning("shape %s cannot be read now: %s", shape.handle, error)
                return
            if chunk.entries:
                at, is_whole = chunk.end, chunk.is_whole
                with self._held.holding(CHUNK_BYTES):
                    for entry in chunk.entries:
                        yield _event(entry)
                if is_whole:
                    yield _event(_up_to_date(lsn, at))
            elif shape.is_dropped:
                yield _event(MUST_REFETCH)
                return
            elif not await self._news(shape, at, KEEP_ALIVE_SECS):
                yield b": keep-alive\n\n"


def _event(message: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(message) + b"\n\n"


def _up_to_date(lsn: int, end: Offset) -> dict[str, Any]:
    """A client that reads events goes on from position 0 of the place named here.

    Everything up to `end` must lie before it, and nothing that is still to come.
    """
    seen = max(lsn, end[0] + 1)
    return {"headers": {"control": "up-to-date", "global_last_seen_lsn": str(seen)}}


def _cursor(previous: str) -> str:
    """Another value in every interval and after every answer, so that caches ask again."""
    now = int(time.time() // LONG_POLL_SECS * LONG_POLL_SECS)
    if previous.isascii() and previous.isdigit() and len(previous) <= 15:
        return str(max(now, int(previous) + 1))
    return str(now)


def _refetch(shape: Shape | None) -> Response:
    headers = {"cache-control": "public, max-age=60, must-revalidate"}
    if shape is None:
        headers["cache-control"] = "public, max-age=1, must-revalidate"
    else:
        headers["electric-handle"] = shape.handle
        headers["location"] = (
            f"/v1/shape?table={shape.definition.relation}&handle={shape.handle}&offset=-1"
        )
    return JSONResponse([MUST_REFETCH], status_code=409, headers=headers)


def _problem(status: int, message: str) -> Response:
    headers = {"cache-control": "no-store"}
    return JSONResponse({"message": message}, status_code=status, headers=headers)


def _unauthorized() -> Response:
    return _problem(401, "Unauthorized: the parameter secret is missing or wrong.")


def _invalid(error: BadRequest) -> Response:
    body = {"message": "Invalid request", "errors": error.errors}
    return JSONResponse(body, status_code=400, headers={"cache-control": "no-store"})


def _unavailable(message: str) -> Response:
    headers = {"cache-control": "no-store", "retry-after": str(RETRY_AFTER_SECS)}
    return JSONResponse({"message": message}, status_code=503, headers=headers)
