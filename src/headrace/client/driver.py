"""Carries the client's steps out over httpx, blocking.

A flow can be stopped from another thread at any moment: its connections are its own, and are
shut down under it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterator
from functools import cache
from typing import Any, TypeVar

import httpx

from headrace.client.exchange import (
    Answer,
    Ask,
    Effect,
    Emit,
    Flow,
    HangUp,
    Open,
    Pull,
    Request,
    Steps,
    Wait,
)
from headrace.client.failures import BadAnswer, ConnectFailed, ConnectionLost
from headrace.client.settings import Settings
from headrace.errors import HeadraceError, InvalidRequest

T = TypeVar("T")

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
KEPT_CONNECTIONS_MAX = 20  # httpx's own default


def pool_options(settings: Settings, tls: ssl.SSLContext) -> dict[str, Any]:
    limits = httpx.Limits(
        max_connections=settings.connections_max, max_keepalive_connections=KEPT_CONNECTIONS_MAX
    )
    return {"verify": tls, "proxy": settings.proxy, "limits": limits}


def tls_context(settings: Settings) -> ssl.SSLContext:
    if isinstance(settings.verify, str):
        return ssl.create_default_context(cafile=settings.verify)
    return _usual_tls_context(settings.verify)


@cache
def _usual_tls_context(verify: bool) -> ssl.SSLContext:
    # Made once: reading the usual certificates takes longer than a hundred requests.
    return httpx.create_ssl_context(verify=verify)


class Contact:
    """Whether the server has answered at all; shared by everything that one client does."""

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made = False


def transport_error(
    request: Request, error: httpx.HTTPError | httpx.InvalidURL, contact: Contact
) -> HeadraceError:
    """What went wrong below HTTP, by whether anything can have been sent."""
    reason = str(error) or type(error).__name__
    if isinstance(error, (httpx.UnsupportedProtocol, httpx.InvalidURL)):
        return InvalidRequest(f"{request.url!r} is not a URL to ask: {error}")
    if isinstance(error, httpx.LocalProtocolError):
        return InvalidRequest(f"The request to {request.url} cannot be sent: {error}")
    if isinstance(error, _NOT_SENT):
        timed_out = isinstance(error, httpx.ConnectTimeout)
        return ConnectFailed(request.url, reason, is_first=not contact.made, timed_out=timed_out)
    if isinstance(error, httpx.DecodingError):
        return BadAnswer(request.url, reason)
    return ConnectionLost(request.url, reason)


def built(
    http: httpx.Client | httpx.AsyncClient,
    request: Request,
    headers: dict[str, str],
    params: dict[str, str],
    settings: Settings,
) -> httpx.Request:
    for name, value in headers.items():
        # Checked here, so that the refusal does not repeat the value: it may be a token.
        if not (value.isascii() and value.isprintable()):
            raise InvalidRequest(f"The header {name} holds a character that cannot be sent.")
    timeout = httpx.Timeout(request.timeout_secs, connect=settings.timeouts.connect_secs)
    url = httpx.URL(request.url).copy_merge_params(params)
    return http.build_request(
        request.method, url, headers=headers, content=request.body, timeout=timeout
    )


def head_of(response: httpx.Response, took_secs: float, body: bytes = b"") -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, body, took_secs)


class Stopped(Exception):
    """The flow was stopped from outside."""


class Line:
    """The connections of one flow, and the switch that ends it."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()

    def trace(self, event: str, info: dict[str, Any]) -> None:
        """An httpx trace: keep every socket that is opened."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            with self._lock:
                self._sockets.append(info["return_value"].get_extra_info("socket"))
            if self.stopped.is_set():
                self.stop()

    def stop(self) -> None:
        self.stopped.set()
        with self._lock:
            for sock in self._sockets:
                # A close would not wake the thread that waits in recv; a shutdown does.
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


class Driver:
    """Performs effects with one pool of connections."""

    def __init__(self, settings: Settings, tls: ssl.SSLContext | None = None) -> None:
        self.settings = settings
        self.tls = tls or tls_context(settings)
        self._http = httpx.Client(**pool_options(settings, self.tls))
        self._contact = Contact()

    def close(self) -> None:
        self._http.close()

    def run(self, steps: Steps[T], line: Line | None = None) -> T:
        """Perform steps to their end; their result. A stopped `line` raises `Stopped`."""
        performer = _Performer(
            self._http, self.settings, self._contact, line, owns_connections=False
        )
        try:
            effect = next(steps)
            while True:
                effect = performer.advance(steps, effect)
        except StopIteration as finished:
            result: T = finished.value
            return result
        finally:
            performer.hang_up()

    def iterate(self, flow: Flow[T], line: Line | None = None) -> Iterator[T]:
        """Perform a flow, and yield what it emits; with a `line`, on connections of its own."""
        if line is None:
            yield from _iterate(flow, _Performer(self._http, self.settings, self._contact, None))
            return
        with httpx.Client(**pool_options(self.settings, self.tls)) as http:
            performer = _Performer(http, self.settings, self._contact, line)
            try:
                yield from _iterate(flow, performer)
            except Stopped:
                return


def _iterate(flow: Flow[T], performer: _Performer) -> Iterator[T]:
    try:
        effect = next(flow)
        while True:
            if isinstance(effect, Emit):
                yield effect.value
                effect = flow.send(None)
            else:
                effect = performer.advance(flow, effect)
    except StopIteration:
        return
    finally:
        flow.close()
        performer.hang_up()


class _Performer:
    def __init__(
        self,
        http: httpx.Client,
        settings: Settings,
        contact: Contact,
        line: Line | None,
        *,
        owns_connections: bool = True,
    ) -> None:
        self._http = http
        self._settings = settings
        self._contact = contact
        self._line = line
        self._owns_connections = owns_connections
        self._opened: httpx.Response | None = None
        self._body: Iterator[bytes] = iter(())
        self._request: Request | None = None

    def advance(self, steps: Generator[Any, Any, Any], effect: Effect) -> Any:
        """Perform one effect, and the next one that the steps come up with."""
        try:
            result = self._perform(effect)
        except HeadraceError as error:
            self._check()
            return steps.throw(error)
        self._check()
        return steps.send(result)

    def _check(self) -> None:
        if self._line is not None and self._line.stopped.is_set():
            raise Stopped

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Ask(request):
                return self._ask(request)
            case Open(request):
                return self._open(request)
            case Pull():
                return self._pull()
            case HangUp():
                return self.hang_up()
            case Wait(secs):
                return self._wait(secs)

    def _wait(self, secs: float) -> None:
        if self._line is not None:
            self._line.stopped.wait(secs)
        else:
            time.sleep(secs)

    def _send(self, request: Request) -> tuple[httpx.Response, float]:
        self._check()
        headers = {name: now(value) for name, value in request.headers.items()}
        params = {name: now(value) for name, value in request.params.items()}
        prepared = built(self._http, request, headers, params, self._settings)
        if self._line is not None and self._owns_connections:
            prepared.extensions["trace"] = self._line.trace
        began = time.monotonic()
        response = self._http.send(prepared, stream=True)
        self._contact.made = True
        return response, began

    def _ask(self, request: Request) -> Answer:
        try:
            response, began = self._send(request)
            with contextlib.closing(response):
                body = response.read()
            return head_of(response, time.monotonic() - began, body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise transport_error(request, error, self._contact) from error

    def _open(self, request: Request) -> Answer:
        self.hang_up()
        try:
            response, began = self._send(request)
            body = b"" if response.is_success else response.read()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise transport_error(request, error, self._contact) from error
        self._opened, self._body, self._request = response, response.iter_bytes(), request
        return head_of(response, time.monotonic() - began, body)

    def _pull(self) -> bytes | None:
        assert self._request is not None, "a body was opened"
        try:
            return next(self._body, None)
        except httpx.HTTPError as error:
            raise transport_error(self._request, error, self._contact) from error

    def hang_up(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
            self._body = iter(())


def now(value: Any) -> str:
    return str(value()) if callable(value) else str(value)
