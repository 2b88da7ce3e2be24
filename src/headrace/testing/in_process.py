"""The real server in a thread of this process: quick to start, easy to look into."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

from headrace.config import Config
from headrace.http.server import Server

START_DEADLINE_SECS = 30.0


class InProcessServer:
    """A server on a free port, with its own event loop; use it as a context manager.

    Without a configuration it keeps everything in memory.
    """

    def __init__(self, config: Config | None = None) -> None:
        self._config = config or replace(Config(), server=replace(Config().server, port=0))
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace", daemon=True)
        self._failure: BaseException | None = None
        self.url = ""

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as failure:
            self._failure = failure
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        server = Server(self._config)
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await server.start()
        self.url = server.url
        self._ready.set()
        await self._stop.wait()
        await server.stop()

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call something on the server's event loop."""
        self._loop.call_soon_threadsafe(callback)

    def __enter__(self) -> InProcessServer:
        self._thread.start()
        if not self._ready.wait(START_DEADLINE_SECS) or not self.url:
            raise RuntimeError("the server did not start") from self._failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_DEADLINE_SECS)
        if self._failure is not None:
            raise RuntimeError("the server failed") from self._failure
