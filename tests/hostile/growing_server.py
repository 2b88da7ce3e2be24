"""Streams that are made and followed within one run, and how long Python's collections take.

    python -m tests.hostile.growing_server [streams]

Prints, for each generation, how many collections there were and the longest, in seconds of the
processor, as JSON. The application is made as a server makes it, without sockets: the requests
would take ten times as long as what is measured.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys

from headrace.clock import SystemClock, thread_cpu
from headrace.config import Config
from headrace.http import process_memory
from headrace.http.app_factory import Assembly, assemble
from headrace.protocol.requests import Create
from headrace.subscriptions.requests import parse_config

STREAMS = 250_000
STREAMS_PER_TURN = 100


class Collections:
    """How many there were of each generation, and the longest."""

    def __init__(self) -> None:
        self._begun = 0.0
        self.counts = [0, 0, 0]
        self.longest_secs = [0.0, 0.0, 0.0]

    def __call__(self, phase: str, facts: dict[str, int]) -> None:
        generation = facts["generation"]
        if phase == "start":
            self._begun = thread_cpu()
            return
        self.counts[generation] += 1
        secs = thread_cpu() - self._begun
        self.longest_secs[generation] = max(self.longest_secs[generation], secs)


def ignore(outcome: object) -> None:
    """Whether the streams were made is seen by counting the links."""


async def grow(made: Assembly, streams: int) -> int:
    """Make streams, a few in each turn of the loop; how many the subscription follows."""
    config = parse_config({"type": "pull-wake", "wake_stream": "wakes", "pattern": "grown/**"})
    made.subscriptions.put("all", config, "http://localhost")
    command = Create(content_type="text/plain")
    for number in range(streams):
        made.application.engine.create(f"grown/{number}", command, ignore)
        if not number % STREAMS_PER_TURN:
            await asyncio.sleep(0)
    return made.subscriptions.link_count


async def measure(streams: int) -> None:
    made = assemble(Config(), SystemClock(), asyncio.get_running_loop())
    made.start()
    process_memory.tune_gc()
    collections = Collections()
    gc.callbacks.append(collections)
    linked = await grow(made, streams)
    await made.stop()
    found = {"linked": linked, "counts": collections.counts, "secs": collections.longest_secs}
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else STREAMS))
