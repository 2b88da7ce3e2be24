"""Runs the client's steps over httpx, awaited. `client.sync_driver` is the same, blocking."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator
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


class AsyncCancelHandle:
    """The switch that ends one flow, whichever task waits in it."""

    def __init__(self) -> None:
        self._stopped = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None
        self._left = asyncio.Event()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    async def hold(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; `Stopped` once the switch is thrown."""
        if self._stopped.is_set():
            work.close()
            raise Stopped
        self._task = asyncio.current_task()
        assert self._task is not None, "a coroutine runs in a task"
        cancelling = self._task.cancelling()
        try:
            return await work
        except asyncio.CancelledError:
            # As asyncio.timeout: our own cancellation is taken back, another's is not ours.
            if self._stopped.is_set() and self._task.uncancel() <= cancelling:
                raise Stopped from None
            raise
        finally:
            self._task = None

    def left(self) -> None:
        """The flow is over and has released its connection."""
        self._left.set()

    async def end(self, items: AsyncItems[Any] | None) -> None:
        """End the flow and release its connection."""
        if not await self.stop() and items is not None:
            await items.aclose()

    async def stop(self) -> bool:
        """End the flow; whether a task waited in it, which has left by now."""
        first = not self._stopped.is_set()
        self._stopped.set()
        if self._task is None:
            return False
        if first:
            self._task.cancel()
        await self._left.wait()
        return True


class AsyncItems(AsyncIterator[T]):
    """What a flow emits; it also ends for a task that iterates while another task closes it.

    A generator would be running then, and would raise in the task that asks it for more.
    """

    def __init__(self, items: AsyncGenerator[T, None], line: AsyncCancelHandle) -> None:
        self._items = items
        self._line = line
        self._is_closing = False

    async def __anext__(self) -> T:
        if self._is_closing or self._line.is_stopped:
            raise StopAsyncIteration
        return await anext(self._items)

    async def aclose(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            await self._items.aclose()


class AsyncDriver:
    """Performs effects with one pool of connections, on one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._http = httpx.AsyncClient(**pool_options(settings, tls_context(settings)))
        self._contact = Contact()

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, steps: Steps[T]) -> T:
        """Perform steps to their end; their result."""
        performer = _Performer(self._http, self.settings, self._contact)
        try:
            effect = _step(steps)
            while True:
                effect = await performer.advance(steps, effect)
        except _Finished as finished:
            result: T = finished.value
            return result
        finally:
            await performer.hang_up()

    def iterate(
        self, flow: Flow[T], line: AsyncCancelHandle | None = None, *, live: bool = False
    ) -> AsyncItems[T]:
        """Perform a flow, and yield what it emits; a stopped `line` ends it, `live` or not."""
        line = line or AsyncCancelHandle()
        return AsyncItems(self._perform(flow, line), line)

    async def _perform(self, flow: Flow[T], line: AsyncCancelHandle) -> AsyncGenerator[T, None]:
        performer = _Performer(self._http, self.settings, self._contact)
        try:
            effect = _step(flow)
            while True:
                if isinstance(effect, Emit):
                    yield effect.value
                    effect = _step(flow)
                else:
                    effect = await line.hold(performer.advance(flow, effect))
        except (_Finished, Stopped):
            return
        finally:
            flow.close()
            try:
                await performer.hang_up()
            finally:
                line.left()


class _Finished(Exception):
    """The steps are at their end; StopIteration may not pass through a coroutine."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _step(
    steps: Generator[Any, Any, Any], result: Any = None, error: Exception | None = None
) -> Any:
    try:
        return steps.throw(error) if error is not None else steps.send(result)
    except StopIteration as finished:
        raise _Finished(finished.value) from None


class _Performer:
    def __init__(self, http: httpx.AsyncClient, settings: Settings, contact: Contact) -> None:
        self._http = http
        self._settings = settings
        self._contact = contact
        self._opened: httpx.Response | None = None
        self._body: AsyncIterator[bytes] | None = None
        self._request: Request | None = None

    async def advance(self, steps: Generator[Any, Any, Any], effect: Effect) -> Any:
        """Perform one effect, and the next one that the steps come up with."""
        try:
            result = await self._perform(effect)
        except HeadraceError as error:
            return _step(steps, error=error)
        return _step(steps, result)

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case Ask(request):
                return await self._ask(request)
            case Open(request):
                return await self._open(request)
            case Pull():
                return await self._pull()
            case HangUp():
                return await self.hang_up()
            case Wait(secs):
                return await asyncio.sleep(secs)

    async def _send(self, request: Request) -> tuple[httpx.Response, float]:
        headers = {name: await _now(value) for name, value in request.headers.items()}
        params = {name: await _now(value) for name, value in request.params.items()}
        prepared = built(self._http, request, headers, params, self._settings)
        began = time.monotonic()
        response = await self._http.send(prepared, stream=True)
        self._contact.made = True
        return response, began

    async def _ask(self, request: Request) -> Answer:
        try:
            response, began = await self._send(request)
            try:
                body = await response.aread()
            finally:
                await response.aclose()
            return head_of(response, time.monotonic() - began, body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise transport_error(request, error, self._contact) from error

    async def _open(self, request: Request) -> Answer:
        await self.hang_up()
        try:
            response, began = await self._send(request)
            body = b"" if response.is_success else await response.aread()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise transport_error(request, error, self._contact) from error
        self._opened, self._body, self._request = response, response.aiter_bytes(), request
        return head_of(response, time.monotonic() - began, body)

    async def _pull(self) -> bytes | None:
        assert self._body is not None, "a body was opened"
        assert self._request is not None, "a body was opened"
        try:
            return await anext(self._body, None)
        except httpx.HTTPError as error:
            raise transport_error(self._request, error, self._contact) from error

    async def hang_up(self) -> None:
        if self._opened is not None:
            opened, self._opened, self._body = self._opened, None, None
            await opened.aclose()


async def _now(value: Any) -> str:
    result = value() if callable(value) else value
    return str(await result if inspect.isawaitable(result) else result)
