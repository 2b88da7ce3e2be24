"""A thread that does what it is handed, in order, and tells the event loop how each thing ended.

An executor makes two futures and takes several locks for every call. The journal's thread is
handed something for every batch, which is why it has this instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple, Protocol

Done = Callable[[BaseException | None], None]


class Lane(Protocol):
    def do(self, work: Callable[[], None], done: Done) -> None:
        """Do `work` after all that was handed in before; then `done`, with what it raised."""
        ...

    def close(self) -> None:
        """Returns when everything that was handed in is done."""
        ...


LaneMaker = Callable[[asyncio.AbstractEventLoop, str], Lane]


class _Errand(NamedTuple):
    work: Callable[[], None]
    done: Done


class ThreadLane:
    """Its thread begins with the first thing to do, and does not keep a process alive."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._errands: SimpleQueue[_Errand | None] = SimpleQueue()
        self._runner = Thread(target=self._run, name=name, daemon=True)

    def do(self, work: Callable[[], None], done: Done) -> None:
        if self._runner.ident is None:
            self._runner.start()
        self._errands.put(_Errand(work, done))

    def _run(self) -> None:
        while (errand := self._errands.get()) is not None:
            error: BaseException | None = None
            try:
                errand.work()
            except BaseException as raised:
                error = raised
            # A loop that is closed has nobody left to tell.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(errand.done, error)

    def close(self) -> None:
        if self._runner.ident is not None:
            self._errands.put(None)
            self._runner.join()
