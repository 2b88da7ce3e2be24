"""A server that has many streams and buckets from its first moment on.

Made within the process, because 100,000 requests would take longer than the tests that need them.
The registry is so full of history that a few hundred deletions more make it compact itself.
"""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

from headrace.cli import main
from headrace.clock import Clock
from headrace.config import Config
from headrace.engine.engine import Engine
from headrace.engine.registry import STALE_MESSAGES_MIN
from headrace.http import server
from headrace.http.app_factory import Assembly, assemble
from headrace.protocol.requests import Create
from headrace.testing.server_process import ServerProcess

STREAMS = 100_000  # crowd/0 and so on; the first ones are gone
GONE = (STREAMS + STALE_MESSAGES_MIN) // 3 - 100
BUCKETED = 2_000  # /crowd/0 and so on, for whoever makes them
BUCKETS = 2_000  # besides


class CrowdedServer(ServerProcess):
    module = "tests.hostile.crowded_server"

    def __init__(self, env: dict[str, str], cwd: str) -> None:
        paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
        super().__init__(env | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}, cwd=cwd)


def ignore(outcome: object) -> None:
    """What could go wrong is seen by whoever counts."""


def fill(engine: Engine) -> None:
    command = Create(content_type="text/plain")
    for number in range(STREAMS):
        engine.create(f"crowd/{number}", command, ignore)
    for number in range(GONE):
        engine.delete(f"crowd/{number}", ignore)
    for number in range(BUCKETS):
        engine.buckets.create(f"bucket-{number}", ignore)


def crowded(config: Config, clock: Clock, loop: asyncio.AbstractEventLoop) -> Assembly:
    made = assemble(config, clock, loop)
    gc.disable()  # nothing of it is garbage, and looking takes as long as making
    fill(made.application.engine)
    gc.enable()
    return made


if __name__ == "__main__":
    server.assemble = crowded  # type: ignore[attr-defined]
    main()
