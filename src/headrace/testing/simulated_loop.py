"""A deterministic event loop: no sockets, no threads, no time; one seed, one order of events.

Enough of asyncio's loop for storage and engine. Work for a thread runs on the loop's own turn, at
a place in the order that the seed chooses; each executor's work stays in the order it was handed
in, as on a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from random import Random
from typing import Any, cast

from headrace.storage.worker_thread import Done, Worker


class _SimulatedWorker:
    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def submit(self, work: Callable[[], None], done: Done) -> None:
        def run() -> None:
            error: Exception | None = None
            try:
                work()
            except Exception as raised:
                error = raised
            self._loop.call_soon(done, error)

        self._loop.hand_in(self, run)

    def close(self) -> None:
        """The loop has been run before it is closed."""


class SimulatedLoop:
    """Runs only on request: `step` once, or `run` until nothing is left to do.

    `as_loop` is itself, for those who ask for an event loop.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._ready: deque[asyncio.Handle] = deque()
        self._handed_in: dict[int, deque[Callable[[], None]]] = {}
        self.errors: list[BaseException] = []

    @property
    def as_loop(self) -> asyncio.AbstractEventLoop:
        return cast(asyncio.AbstractEventLoop, self)

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self.as_loop, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """There is no time here: what is to happen later does not happen."""
        return asyncio.TimerHandle(delay, callback, args, self.as_loop, context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Asked for by handles that are cancelled."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self.as_loop)

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What a callback raised, or an exception that was never retrieved."""
        error = context.get("exception")
        if isinstance(error, Exception):
            self.errors.append(error)
        elif error is not None:
            raise error

    def run_in_executor(
        self, executor: Executor | None, work: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            try:
                result = work(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.hand_in(executor, run)
        return future

    def lane(self, loop: asyncio.AbstractEventLoop, name: str) -> Worker:
        """For storage, in the place of a thread of its own."""
        return _SimulatedWorker(self)

    def hand_in(self, owner: object, work: Callable[[], None]) -> None:
        self._handed_in.setdefault(id(owner), deque()).append(work)

    @property
    def is_idle(self) -> bool:
        return not self._ready and not any(self._handed_in.values())

    def step(self) -> None:
        """One callback, or one piece of work of one thread."""
        waiting = [queue for queue in self._handed_in.values() if queue]
        if self._ready and (not waiting or self._random.random() < 0.7):
            self._ready.popleft()._run()
        elif waiting:
            self._random.choice(waiting).popleft()()

    def run(self) -> None:
        while not self.is_idle:
            self.step()
