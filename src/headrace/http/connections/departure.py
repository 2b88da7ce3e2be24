"""Whether a client that is not read from has left: asked of the kernel.

The end of a connection comes behind everything that was sent before it, so a connection whose
reading is paused does not notice it. A client that sends a request behind a long-poll and leaves
would keep its place, as a reader and as a connection, until the poll ends.
"""

from __future__ import annotations

import select
import socket
from typing import Final

# Linux's; elsewhere such a client stays until its poll ends.
_CLOSED: Final = getattr(select, "POLLRDHUP", 0)


def has_left(sock: socket.socket | None) -> bool:
    """Whether the peer has closed, or half-closed, its side."""
    if sock is None or not _CLOSED or sock.fileno() < 0:
        return False
    poller = select.poll()
    poller.register(sock.fileno(), _CLOSED)
    return any(events for _, events in poller.poll(0))
