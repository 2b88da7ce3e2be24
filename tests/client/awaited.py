"""The awaited client behind the face of the blocking one, so that each test runs with both.

Calls are handed to an event loop in a thread of its own; asynchronous iterators become plain ones.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, cast

from headrace.client import (
    AsyncBucket,
    AsyncClient,
    AsyncProducer,
    AsyncReader,
    AsyncStateView,
    AsyncStream,
    AsyncSubscription,
    Client,
)
from headrace.testing.waiting import DEADLINE_SECS

_OURS = (AsyncBucket, AsyncProducer, AsyncReader, AsyncStateView, AsyncStream, AsyncSubscription)


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(2 * DEADLINE_SECS)

    def stop(self) -> None:
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_SECS)
        self._loop.close()


def awaited_client(url: str, **settings: Any) -> Client:
    """An `AsyncClient` that is used like a `Client`."""
    loop = Loop()

    async def make() -> AsyncClient:
        return AsyncClient(url, **settings)

    return cast(Client, Awaited(loop.run(make()), loop, owns_loop=True))


class Awaited:
    def __init__(self, thing: Any, loop: Loop, owns_loop: bool = False) -> None:
        self._thing = thing
        self._loop = loop
        self._owns_loop = owns_loop

    def __getattr__(self, name: str) -> Any:
        if name == "close" and isinstance(self._thing, AsyncReader | AsyncStateView):
            name = "aclose"
        return self._plain(getattr(self._thing, name))

    def _plain(self, value: Any) -> Any:
        if inspect.iscoroutine(value):
            return self._plain(self._loop.run(value))
        if isinstance(value, AsyncIterator):
            return self._drawn(value)
        if isinstance(value, _OURS):
            return Awaited(value, self._loop)
        if inspect.ismethod(value):
            return lambda *args, **kwargs: self._plain(self._called(value, args, kwargs))
        return value

    def _called(self, method: Any, args: Any, kwargs: Any) -> Any:
        async def call() -> Any:
            # On the loop: a producer makes its condition variables for the loop it is made on.
            return method(*args, **kwargs)

        return self._loop.run(call())

    def _drawn(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        end = object()

        async def draw() -> Any:
            return await anext(items, end)

        async def leave() -> None:
            await items.aclose()  # type: ignore[attr-defined]

        try:
            while (item := self._loop.run(draw())) is not end:
                yield item
        finally:
            self._loop.run(leave())

    def __iter__(self) -> Iterator[Any]:
        return self._drawn(self._thing.__aiter__())

    def __enter__(self) -> Awaited:
        return self

    def __exit__(self, *trouble: Any) -> None:
        leave = getattr(self._thing, "__aexit__", None)
        if leave is not None:
            try:
                self._loop.run(leave(*trouble))
            finally:
                if self._owns_loop:
                    self._loop.stop()
