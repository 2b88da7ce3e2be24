"""A thread that runs jobs in order and calls back on the event loop when each has ended.

An executor makes two futures and takes several locks for every call. The journal's thread gets a
job for every batch, which is why it has this instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple, Protocol

Done = Callable[[BaseException | None], None]


class Worker(Protocol):
    def submit(self, work: Callable[[], None], done: Done) -> None:
        """Do `work` after all that was handed in before; then `done`, with what it raised."""
        ...

    def close(self) -> None:
        """Returns when everything that was handed in is done."""
        ...


WorkerFactory = Callable[[asyncio.AbstractEventLoop, str], Worker]


class _Job(NamedTuple):
    work: Callable[[], None]
    done: Done


class WorkerThread:
    """Its thread begins with the first thing to do, and does not keep a process alive."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._runner = Thread(target=self._run, name=name, daemon=True)

    def submit(self, work: Callable[[], None], done: Done) -> None:
        if self._runner.ident is None:
            self._runner.start()
        self._jobs.put(_Job(work, done))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            error: BaseException | None = None
            try:
                job.work()
            except BaseException as raised:
                error = raised
            # The loop is closed: no callback can run any more.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(job.done, error)

    def close(self) -> None:
        if self._runner.ident is not None:
            self._jobs.put(None)
            self._runner.join()
