"""Routes: which handler answers which URL.

`Application.handle` is the whole server behind a transport: it takes a request and an exchange
and sees to it that the exchange is answered, now or later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from headrace.engine.engine import Engine
from headrace.errors import HeadraceError, MethodNotAllowed, RouteNotFound
from headrace.faults import internal_fault
from headrace.http.cors import CorsPolicy
from headrace.http.exchange import Exchange, Request
from headrace.http.forwarded import ForwardedOrigins
from headrace.http.handlers.buckets import BucketRoutes
from headrace.http.handlers.health import Health
from headrace.http.handlers.stream_metadata import StreamMetadata
from headrace.http.handlers.streams import StreamRoutes
from headrace.http.handlers.subscription_routes import SubscriptionRoutes
from headrace.http.handlers.tails import TailRoutes
from headrace.http.handlers.trims import TrimRoutes
from headrace.http.metrics import Metrics
from headrace.http.permissions import Action
from headrace.http.ratelimit import RateLimiter
from headrace.protocol import responses
from headrace.protocol.names import CONTROL_PREFIX
from headrace.protocol.tails import engine_name

_CONTROL: Final = CONTROL_PREFIX.encode()
Handler = Callable[[Request, Exchange], None]


class Application:
    def __init__(
        self,
        *,
        engine: Engine,
        streams: StreamRoutes,
        buckets: BucketRoutes,
        control: SubscriptionRoutes,
        tails: TailRoutes,
        trims: TrimRoutes,
        stream_metadata: StreamMetadata,
        cors: CorsPolicy,
        origins: ForwardedOrigins,
        limiter: RateLimiter | None,
        metrics: Metrics,
        health: Health,
        stream_root: str,
        aliases: Mapping[str, StreamRoutes],
        pages: Mapping[bytes, Handler],
    ) -> None:
        self.engine = engine
        self.cors = cors
        self.metrics = metrics
        self.health = health
        # The request that was begun last: for the watchdog, which cannot see compiled functions
        # on the stack, and forgets it again within a moment.
        self.current: Request | None = None
        self._streams = streams
        self._control = control
        self._tail_routes = tails
        self._trim_routes = trims
        self._stream_metadata = stream_metadata
        self._origins = origins
        self._limiter = limiter
        self._root = f"{stream_root}/".encode()
        self._root_length = len(self._root)
        # The longest first: one may be below another, and "/" is before every path.
        self._elsewhere: list[tuple[bytes, StreamRoutes | BucketRoutes]] = sorted(
            [(buckets.root, buckets), *((f"{root}/".encode(), aliases[root]) for root in aliases)],
            key=lambda mounted: len(mounted[0]),
            reverse=True,
        )
        self._control_root = self._root + _CONTROL
        self._tails = self._control_root + b"/tails"
        self._trim = self._control_root + b"/trim"
        self._fixed: dict[bytes, Handler] = {
            b"/healthz": health.healthz,
            b"/readyz": health.readyz,
            b"/metrics": metrics.scrape,
            **pages,
        }

    def handle(self, request: Request, exchange: Exchange) -> None:
        self.current = request
        target = request.target
        try:
            if self._limiter is not None and target not in self._fixed:
                self._limiter.admit(self._origins.subject(request))
            if request.method == b"OPTIONS":
                request.operation = "preflight"
                exchange.respond(self.cors.preflight())
            elif not target.startswith(self._root):
                self._handle_elsewhere(request, exchange)
            elif target.startswith(self._control_root):
                self._handle_control(request, exchange)
            else:
                self._streams.handle(request, exchange, target[self._root_length :])
        except HeadraceError as refusal:
            exchange.respond(responses.problem(refusal))
        except Exception:
            exchange.respond(responses.problem(internal_fault("a request")))

    def _handle_control(self, request: Request, exchange: Exchange) -> None:
        path, _, query = request.target.partition(b"?")
        if path == self._tails:
            self._tail_routes.handle(request, exchange, query, engine_name)
        elif path == self._trim:
            self._trim_routes.handle(request, exchange, engine_name)
        elif self._stream_metadata.owns(path):
            self._stream_metadata.handle(request, exchange)
        else:
            request.operation = "subscription"
            self._control.handle(request, exchange)

    def _handle_elsewhere(self, request: Request, exchange: Exchange) -> None:
        """Not below the stream root: a path of the server's own, an alias of it, or a bucket."""
        handler = self._fixed.get(request.target.partition(b"?")[0])
        if handler is None:
            self._handle_mounted(request, exchange)
        elif request.method in (b"GET", b"HEAD"):
            if request.guard is not None and handler == self.metrics.scrape:
                request.guard(Action.ADMIN, "")
            handler(request, exchange)
        else:
            raise MethodNotAllowed("GET, HEAD, OPTIONS")

    def _handle_mounted(self, request: Request, exchange: Exchange) -> None:
        for root, routes in self._elsewhere:
            if request.target.startswith(root):
                below = request.target[len(root) :]
                if isinstance(routes, StreamRoutes) and below.startswith(_CONTROL):
                    request.target = self._root + below
                    self._handle_control(request, exchange)
                else:
                    routes.handle(request, exchange, below)
                return
        raise RouteNotFound(request.target.partition(b"?")[0].decode("latin-1"))
