"""How long an application lives: its background work, one tick a second, and what ends it.

The server process and the ASGI application share this, so that both stop for the same reasons. A
background task that dies takes the application with it: a sweeper that is gone would keep expired
streams, and storage that has failed can acknowledge nothing any more. `failed` raises the reason;
the owner then serves reads for `grace_secs`, with /readyz red, and calls `stop`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.config import Config
from headrace.http.app_factory import Assembly
from headrace.http.connections.response_head import TICK_SECS

FAIL_STOP_SECS = 5.0  # time for a load balancer to see that /readyz is red


def grace_secs(config: Config) -> float:
    """How long reads are still served after a failure."""
    return min(FAIL_STOP_SECS, config.server.drain_secs)


class Lifespan:
    """Starts an assembled application, ticks, and waits for a failure.

    `on_tick` is what the owner itself does once a second, before the application's own work.
    """

    def __init__(self, assembly: Assembly, on_tick: Callable[[], None] | None = None) -> None:
        self._assembly = assembly
        self._on_tick = on_tick

    def start(self) -> None:
        self._assembly.start()
        self._ticker = asyncio.ensure_future(self._tick())

    async def failed(self) -> None:
        """Returns never, or raises what a background task died of."""
        await asyncio.gather(self._ticker, self._assembly.failed())

    async def _tick(self) -> None:
        loop, metrics = asyncio.get_running_loop(), self._assembly.application.metrics
        while True:
            due = loop.time() + TICK_SECS
            await asyncio.sleep(TICK_SECS)
            metrics.event_loop_lag_secs = max(0.0, loop.time() - due)
            if self._on_tick is not None:
                self._on_tick()
            self._assembly.tick()

    async def stop(self) -> None:
        self._ticker.cancel()
        await self._assembly.stop()
