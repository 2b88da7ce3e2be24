"""A service of the stack: its command, the services it needs, and its health check."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HEALTH_TIMEOUT_SECS = 5.0
HEADRACE = (sys.executable, "-m", "headrace.cli")


@dataclass(frozen=True)
class HealthProbe:
    """How to ask a service whether it is well.

    `http` wants 200 from a URL, `tcp` wants a connection to host:port, `postgres` wants an answer
    to a query, `pipelines` wants a recent word of progress in each of some files, `process` is
    content with a live process.
    """

    kind: str
    target: str = ""


ALIVE = HealthProbe("process")


@dataclass(frozen=True)
class Service:
    """One process of the stack."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    health: HealthProbe = ALIVE
    needs: tuple[str, ...] = ()
    address: str = ""  # what a person opens or connects to
    page: str = ""  # the stream browser's address, where this service serves it
    note: str = ""
    stop_signal: int = signal.SIGTERM
    stop_secs: float = 15.0
    oneshot: bool = False  # runs once; 0 is success, and what needs it waits for that
    user: tuple[int, int] | None = None  # uid and gid, where it must not run as root
    cwd: Path | None = None
    reports: tuple[Path, ...] = ()  # what it writes about itself; an earlier run's say nothing
