"""Runs the client's steps over httpx, blocking. `client.async_driver` is the same, awaited.

The two drivers are written by hand, as are the two producers: one is stopped by shutting down its
sockets from another thread, the other by cancelling a task. What is built on them (`sync_client`,
`sync_admin`, `sync_state_view`) is generated from its async half.

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
from typing import Any, TypeVar

import httpx

from headrace.client.effects import (
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
from headrace.client.settings import Settings
from headrace.client.transport import (
    Contact,
    Stopped,
    built,
    head_of,
    pool_options,
    tls_context,
    transport_error,
)
from headrace.errors import HeadraceError

T = TypeVar("T")
Items = Iterator
"""What a flow emits, as `async_driver.AsyncItems`."""


class CancelHandle:
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

    def end(self, items: Items[Any] | None) -> None:
        """End the flow. Its iterator ends in the thread that runs it."""
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

    def run(self, steps: Steps[T], line: CancelHandle | None = None) -> T:
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

    def iterate(
        self, flow: Flow[T], line: CancelHandle | None = None, *, live: bool = False
    ) -> Items[T]:
        """Perform a flow, and yield what it emits; a live one on connections of its own.

        Only a live flow waits, so only its connections are worth shutting down under it.
        """
        if line is None or not live:
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
        line: CancelHandle | None,
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
