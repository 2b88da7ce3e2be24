"""The same server as an ASGI application, to mount inside FastAPI or Starlette under any path.

    from headrace.http.asgi import create_app
    api.mount("/streams", create_app())

Rules and engine are those of `headrace serve`; connections, TLS, HTTP parsing and which hosts are
answered are the ASGI server's. A mounted application gets no lifespan events: it starts with its
first request, and its host calls `aclose()` when it stops.

It also fails as `headrace serve` does. When storage fails or a background task dies, writes get 503
and /readyz turns red at once, reads go on for a few seconds, then the application stops for good:
every request gets 503, and `on_failure` is called. By default that ends the process by SIGTERM, so
that what supervises it starts a new one, which recovers. There is no way back in the same process:
after a failed sync its page cache does not say what is on the disk.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from inspect import isawaitable
from typing import Any
from urllib.parse import quote

from headrace import config as configuration
from headrace.clock import SystemClock
from headrace.config import Config
from headrace.errors import (
    AnswerTimeout,
    BodyTooLarge,
    HeadraceError,
    MalformedHttp,
    Overloaded,
    StorageFailed,
    StoredBytesUnreadable,
)
from headrace.http.access import Access, access_of
from headrace.http.app_factory import Assembly, assemble
from headrace.http.exchange import Client, Frame, Request, Waiter
from headrace.http.forwarded import HOST
from headrace.http.lifespan import Lifespan, grace_secs
from headrace.http.permissions import Action, Can, Guard, guard_of
from headrace.protocol import responses
from headrace.protocol.headers import Headers
from headrace.protocol.responses import WITHOUT_BODY, Response

__all__ = ["Action", "Headrace", "Scope", "create_app"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OnFailure = Callable[[BaseException], object]
User = Callable[[Scope], Any]

QUEUE_BYTES_MAX = 32 * 1024  # what a slow live reader may have waiting here

logger = logging.getLogger(__name__)


def user_of_scope(scope: Scope) -> Any:
    """What a middleware of Starlette's found; None for a user who is not signed in."""
    user = scope.get("user")
    return user if getattr(user, "is_authenticated", True) else None


def end_process(_: BaseException) -> None:
    """Ask the ASGI server to shut down, as an operator's SIGTERM would."""
    signal.raise_signal(signal.SIGTERM)


def create_app(
    config: Config | None = None,
    *,
    can: Can | None = None,
    user: User = user_of_scope,
    on_failure: OnFailure = end_process,
) -> Headrace:
    """An application from `config`, or from the layers `headrace serve` reads.

    With `can`, each request is allowed by `can(user, action, stream)` or refused; `user(scope)`,
    which may be awaited, says whose it is: by default what Starlette's AuthenticationMiddleware
    found. `on_failure` is called once with the reason after the application has stopped on a
    failure.
    """
    return Headrace(config or configuration.load().config, on_failure, can, user)


class Headrace:
    """The ASGI application."""

    def __init__(
        self,
        config: Config,
        on_failure: OnFailure = end_process,
        can: Can | None = None,
        user: User = user_of_scope,
    ) -> None:
        self._config = config
        self._on_failure = on_failure
        self._can = can
        self._user = user
        self._clock = SystemClock()
        self._assembly: Assembly | None = None
        self._access = Access()
        self._observe: Callable[[Request, int, int], float]
        self._supervisor: asyncio.Task[None] | None = None
        self._has_failed = False
        self._start_failure = ""
        self._body_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan_events(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            raise ValueError(f"Headrace serves http, not {scope['type']}")

    async def _lifespan_events(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self._start()
        except (HeadraceError, OSError) as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    def _start(self) -> Assembly:
        """The application, started by the first request; StorageFailed once it has failed.

        Where it cannot start, each request tries again and is answered with the reason.
        """
        if self._has_failed:
            raise StorageFailed
        if self._assembly is None:
            loop = asyncio.get_running_loop()
            self._assembly = assemble(self._config, self._clock, loop)
            self._observe = self._assembly.application.metrics.observe
            if self._config.log.traces:
                from headrace.http.tracing import traced

                self._observe = traced(self._observe, self._clock)
            self._access = access_of(self._config, self._assembly.origins, listens=False)
            self._lifespan = Lifespan(self._assembly)
            self._lifespan.start()
            self._supervisor = asyncio.ensure_future(self._supervise())
        return self._assembly

    async def _supervise(self) -> None:
        try:
            await self._lifespan.failed()
        except Exception as error:
            logger.critical("a background task died; the application stops", exc_info=error)
            await asyncio.sleep(grace_secs(self._config))
            self._has_failed = True
            await self._stop()
            self._on_failure(error)

    async def aclose(self) -> None:
        """Stop background work; live reads end with the server that carries them."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            self._supervisor = None
        await self._stop()

    async def _stop(self) -> None:
        if self._assembly is not None:
            self._assembly = None
            await self._lifespan.stop()

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_head = scope["method"] == "HEAD"
        try:
            application = self._start().application
        except (HeadraceError, OSError) as failure:
            refusal = self._start_refusal(failure)
            await _Sender(send, b"", head_only=is_head).respond(responses.problem(refusal))
            return
        headers = _joined(scope["headers"])
        sender = _Sender(send, application.cors.headers(headers), head_only=is_head)
        try:
            self._check_access(scope, headers)
            self._check_length(headers)
            guard = await self._guard(scope)
            body = await self._read_body(receive)
        except HeadraceError as refusal:
            await sender.respond(responses.problem(refusal))
            return
        if body is None:
            return
        request = self._request(scope, headers, body)
        request.guard = guard
        request.reserved_bytes, request.budget = len(body), self
        exchange = AsgiExchange(
            self._config.http.answer_timeout_secs, self._config.server.long_poll_timeout_secs
        )
        del body
        application.handle(request, exchange)
        if not request.keeps_body:
            request.release_body()
        await exchange.run(receive, sender)
        self._observe(request, sender.status, sender.sent_bytes)

    def _start_refusal(self, failure: HeadraceError | OSError) -> HeadraceError:
        """The answer to requests while there is no application; each reason is logged once."""
        if str(failure) != self._start_failure and not isinstance(failure, StorageFailed):
            self._start_failure = str(failure)
            logger.critical("the application cannot start: %s", failure)
        if isinstance(failure, HeadraceError):
            return failure
        return StoredBytesUnreadable(str(self._config.storage.data_dir), str(failure))

    def _request(self, scope: Scope, headers: Headers, body: bytes) -> Request:
        mount = scope.get("root_path", "")
        raw_path = scope.get("raw_path") or quote(scope["path"]).encode()
        target: bytes = raw_path.partition(b"?")[0].removeprefix(quote(mount).encode())
        if scope.get("query_string"):
            target += b"?" + scope["query_string"]
        return Request(
            scope["method"].encode(),
            target,
            headers,
            body,
            _client(scope),
            self._clock.monotonic(),
        )

    async def _guard(self, scope: Scope) -> Guard | None:
        if self._can is None:
            return None
        user = self._user(scope)
        if isawaitable(user):
            user = await user
        return guard_of(self._can, user)

    def _check_access(self, scope: Scope, headers: Headers) -> None:
        """Only hosts that are listed: the ASGI host decides where it listens."""
        access, host = self._access, headers.get(b"host")
        if host is not None and not HOST.fullmatch(host):
            raise MalformedHttp("The Host header must be a host, or host and port.")
        refusal = None if host is None else access.host_refusal(host)
        if refusal is None and (b"origin" in headers or b"sec-fetch-site" in headers):
            refusal = access.page_refusal(scope["method"].encode(), headers, _client(scope))
        if refusal is not None:
            raise refusal

    def _check_length(self, headers: Headers) -> None:
        """A body that says it is too long is not waited for."""
        declared, limit = headers.get(b"content-length", b""), self._config.limits.max_body_bytes
        if declared.isdigit() and int(declared[:20]) > limit:
            raise BodyTooLarge(limit)

    def release(self, count: int) -> None:
        """Bytes of a body that are in flight no more."""
        self._body_bytes -= count

    async def _read_body(self, receive: Receive) -> bytes | None:
        """The whole body, counted; None where the client left before it was complete."""
        limits = self._config.limits
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                part = message.get("body", b"")
                size += len(part)
                self._body_bytes += len(part)
                if size > limits.max_body_bytes:
                    raise BodyTooLarge(limits.max_body_bytes)
                if self._body_bytes > limits.max_inflight_body_bytes:
                    raise Overloaded(
                        "bytes of request bodies in flight", limits.max_inflight_body_bytes
                    )
                parts.append(part)
                if not message.get("more_body", False):
                    size = 0  # the request's from here on
                    return b"".join(parts)
        finally:
            self._body_bytes -= size


class _Sender:
    """Responses and frames as ASGI messages."""

    def __init__(self, send: Send, cors: bytes, *, head_only: bool) -> None:
        self._send = send
        self._cors = cors
        self._head_only = head_only
        self.status = 0
        self.sent_bytes = 0

    async def respond(self, response: Response) -> None:
        headers = self._cors + response.headers
        # Of a HEAD without a body it is not known how long that of a GET would be.
        is_unknown = self._head_only and not response.body
        if response.status not in WITHOUT_BODY and not is_unknown:
            headers += b"Content-Length: %d\r\n" % len(response.body)
        await self._head(response.status, headers)
        await self._body(b"" if self._head_only else response.body, more=False)

    async def start(self, response: Response) -> None:
        await self._head(response.status, self._cors + response.headers)

    async def frame(self, frame: Frame) -> None:
        await self._body(frame.raw, more=True)

    async def end(self) -> None:
        await self._body(b"", more=False)

    async def _head(self, status: int, lines: bytes) -> None:
        self.status = status
        pairs = [line.split(b": ", 1) for line in lines.split(b"\r\n") if line]
        headers = [(name.lower(), value) for name, value in pairs]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _body(self, body: bytes, *, more: bool) -> None:
        self.sent_bytes += len(body)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


class AsgiExchange:
    """An exchange whose answers wait in a queue until the request's own task sends them.

    A request waits `answer_secs` for its answer to begin, one that is held `held_secs` longer.
    """

    def __init__(self, answer_secs: float, held_secs: float) -> None:
        self.writable = True
        self._answer_secs = answer_secs
        self._held_secs = held_secs
        self._begun = False
        self._waiter: Waiter | None = None
        self._queue: deque[Callable[[_Sender], Awaitable[None]]] = deque()
        self._queued_bytes = 0
        self._wakeup = asyncio.Event()
        self._done = False
        self._left = False
        self._on_left: Callable[[], None] | None = None

    def respond(self, response: Response) -> None:
        self._put(lambda sender: sender.respond(response))
        self._finish()

    def start(self, response: Response) -> None:
        self._put(lambda sender: sender.start(response))

    def send(self, frame: Frame) -> None:
        self._queued_bytes += len(frame.raw)
        self.writable = self._queued_bytes < QUEUE_BYTES_MAX
        self._put(lambda sender: self._send_frame(sender, frame))

    async def _send_frame(self, sender: _Sender, frame: Frame) -> None:
        await sender.frame(frame)
        self._queued_bytes -= len(frame.raw)
        if not self.writable and self._queued_bytes < QUEUE_BYTES_MAX:
            self.writable = True
            if self._waiter is not None:
                self._waiter.on_writable()

    def end(self) -> None:
        self._put(_Sender.end)
        self._finish()

    def abort(self) -> None:
        self._queue.clear()
        self._finish()

    def when_left(self, callback: Callable[[], None]) -> None:
        if self._left:
            callback()
        else:
            self._on_left = callback

    def hold(self, waiter: Waiter) -> None:
        if self._left:
            waiter.on_disconnect()
        elif not self._done:
            self._waiter = waiter

    def _put(self, action: Callable[[_Sender], Awaitable[None]]) -> None:
        if not self._done:
            self._begun = True
            self._queue.append(action)
            self._wakeup.set()

    def _finish(self) -> None:
        self._done = True
        self._waiter = None
        self._wakeup.set()

    async def run(self, receive: Receive, sender: _Sender) -> None:
        """Send what is put in, until it is complete or the client has left."""
        leaving: asyncio.Future[None] | None = None
        try:
            while True:
                await self._drain(sender)
                if self._done or (leaving is not None and leaving.done()):
                    return
                if leaving is None:
                    leaving = asyncio.ensure_future(_disconnected(receive))
                    leaving.add_done_callback(lambda _: self._wakeup.set())
                if self._begun:
                    await self._wakeup.wait()
                else:
                    await self._wait_for_answer()
                self._wakeup.clear()
        finally:
            if leaving is not None:
                leaving.cancel()
            self._left = True
            if self._on_left is not None and not self._done:
                self._on_left()
            waiter, self._waiter = self._waiter, None
            if waiter is not None:
                waiter.on_disconnect()

    async def _wait_for_answer(self) -> None:
        """Nothing waits for ever, whatever became of its answer."""
        waited_secs = self._answer_secs + (self._held_secs if self._waiter is not None else 0.0)
        try:
            async with asyncio.timeout(waited_secs):
                await self._wakeup.wait()
        except TimeoutError:
            logger.error("a request had no answer after %.0f s", waited_secs)
            waiter = self._waiter
            self.respond(responses.problem(AnswerTimeout(waited_secs)))
            if waiter is not None:
                waiter.on_disconnect()

    async def _drain(self, sender: _Sender) -> None:
        while self._queue:
            await self._queue.popleft()(sender)


def _client(scope: Scope) -> Client:
    peer = scope.get("client")
    address = peer[0] if peer else "unix"
    return Client(address, scope.get("scheme", "http"), scope.get("root_path", ""))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _joined(pairs: Iterable[tuple[bytes, bytes]]) -> Headers:
    headers: Headers = {}
    for name, value in pairs:
        name = name.lower()
        headers[name] = headers[name] + b", " + value if name in headers else value
    return headers
