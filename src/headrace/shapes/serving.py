"""The Shape API as a server: uvicorn, with live readers answered before it stops."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress

import uvicorn

from headrace.shapes.api import AccessRules, ShapeApi
from headrace.shapes.service import Shapes

_GRACE_SECS = 2
_EXIT_FAILED = 1
_EXIT_NOT_STARTED = 3  # uvicorn's own


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, shapes: Shapes) -> None:
        super().__init__(config)
        self._shapes = shapes

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._shapes.drain()
        await super().shutdown(sockets)


def serve(
    shapes: Shapes, *, allow_deletion: bool, host: str, port: int, access: AccessRules
) -> None:
    """Until SIGTERM or Ctrl-C, or until the shapes are no longer followed."""
    config = uvicorn.Config(
        ShapeApi(shapes, allow_deletion=allow_deletion, access=access).application(),
        host=host,
        port=port,
        log_level="warning",
        timeout_graceful_shutdown=_GRACE_SECS,
    )
    server = _Server(config, shapes)

    def stop() -> None:
        server.should_exit = True

    shapes.on_failure = stop
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again once it has stopped
        server.run()
    if not server.started:
        sys.exit(_EXIT_NOT_STARTED)
    if shapes.failure is not None:
        sys.exit(_EXIT_FAILED)
