"""`headrace serve` that begins with 100,000 streams beside the buckets and as many in one.

They are made in the engine, before it serves: over HTTP they would take most of the test's time.
"""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import Final

from headrace.cli import main
from headrace.clock import Clock
from headrace.config import Config
from headrace.engine.engine import Engine
from headrace.http import server
from headrace.http.app_factory import Assembly, assemble
from headrace.protocol.requests import Create
from headrace.testing.server_process import ServerProcess

MANY: Final = 100_000
BUCKET: Final = "crowd"


class CrowdedServer(ServerProcess):
    module = "tests.ui.crowded"

    def __init__(self, cwd: str) -> None:
        paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
        super().__init__({"PYTHONPATH": os.pathsep.join(filter(None, paths))}, cwd=cwd)


def fill(engine: Engine) -> None:
    engine.buckets.create(BUCKET, ignore)
    command = Create(content_type="text/plain")
    # Most in one folder, which is the hardest for a tree; in an order that must be sorted.
    for number in range(MANY):
        engine.create(f"fleet/{number:x}", command, ignore)
        engine.create(f"/{BUCKET}/{number:x}", command, ignore)


def ignore(outcome: object) -> None:
    """What could go wrong is seen by whoever counts."""


def crowded(config: Config, clock: Clock, loop: asyncio.AbstractEventLoop) -> Assembly:
    made = assemble(config, clock, loop)
    gc.disable()  # nothing of it is garbage, and looking takes as long as making
    fill(made.application.engine)
    gc.enable()
    gc.freeze()
    return made


if __name__ == "__main__":
    server.assemble = crowded  # type: ignore[attr-defined]
    main()
