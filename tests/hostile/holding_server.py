"""A server that can be asked to hold its event loop, for the tests of the watchdog.

`GET /v1/stream/__ds/streams?name=hold/...` holds it: `compute` by a loop of Python, `gil` by one
call that keeps the GIL, `wait` by a call that waits, `sweep` by the next sweep. Anything else is
answered as ever.
"""

from __future__ import annotations

import os
from pathlib import Path

from headrace import clock
from headrace.cli import main
from headrace.engine.expiry_queue import ExpiryQueue
from headrace.engine.stream_runtime import Stream
from headrace.http.handlers.stream_metadata import Document, StreamMetadata
from headrace.protocol.expiry import Moment
from headrace.testing.server_process import ServerProcess

HOLD_SECS = 0.4

_many = StreamMetadata._many
_pop_over = ExpiryQueue.pop_over
_asked: list[str] = []


class HoldingServer(ServerProcess):
    module = "tests.hostile.holding_server"

    def __init__(self, cwd: str) -> None:
        paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
        super().__init__({"PYTHONPATH": os.pathsep.join(filter(None, paths))}, cwd=cwd)


def compute() -> None:
    until = clock.thread_cpu() + HOLD_SECS
    while clock.thread_cpu() < until:
        pass


def keep_gil() -> None:
    """One call after another that never looks whether someone else wants the GIL."""
    numbers = range(3_000_000)
    until = clock.thread_cpu() + HOLD_SECS
    while clock.thread_cpu() < until:
        sum(numbers)


def many(self: StreamMetadata, wanted: list[str]) -> Document:
    for name in wanted:
        match name:
            case "hold/compute":
                compute()
            case "hold/gil":
                keep_gil()
            case "hold/wait":
                clock.sleep(HOLD_SECS)
            case "hold/sweep":
                _asked.append(name)
    return _many(self, wanted)


def pop_over(self: ExpiryQueue, now: Moment, streams_max: int) -> list[Stream]:
    while _asked:
        _asked.pop()
        compute()
    return _pop_over(self, now, streams_max)


if __name__ == "__main__":
    StreamMetadata._many = many  # type: ignore[method-assign]
    ExpiryQueue.pop_over = pop_over  # type: ignore[method-assign]
    main()
