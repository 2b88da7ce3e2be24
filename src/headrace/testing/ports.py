"""Free ports for tests."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port that was free a moment ago, for a server that must know its own beforehand."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), 1.0).close()
    except OSError:
        return False
    return True
