"""The servers under test: each is started in memory mode, as a fresh process on a free port."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import REPOSITORY
from bench.rows.base import Target
from bench.sockets import LOOPBACK

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
REFERENCE = REPOSITORY / "bench" / "reference"
HEADRACE = REPOSITORY / ".venv" / "bin" / "headrace"
COMPILED = REPOSITORY / "build" / "compiled"
MEMORY_BYTES_MAX = 16 * 2**30  # out of the way: the reference has no limit at all

HEADRACE_ENVIRONMENT = {
    "DS_STORAGE__MODE": "memory",
    "DS_LIMITS__MAX_MEMORY_BYTES": str(MEMORY_BYTES_MAX),
    "DS_LIMITS__MAX_STREAM_BYTES": str(MEMORY_BYTES_MAX),
}


class ServerError(Exception):
    """The server did not start or did not live; the message holds the end of its output."""


def _nothing() -> None:
    """Most servers need no preparation."""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    command: Callable[[int], list[str]]
    environment: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[], None] = _nothing


def _require_headrace() -> None:
    if not HEADRACE.exists():
        raise ServerError(f"{HEADRACE} is missing: run make setup")


def _require_compiled() -> None:
    _require_headrace()
    if not (COMPILED / ".built").exists():
        raise ServerError(f"{COMPILED} is missing: run make compiled")


def _install_reference() -> None:
    if (REFERENCE / "node_modules").exists():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise ServerError("the reference server needs Node 20 and npm")
    subprocess.run([npm, "ci"], cwd=REFERENCE, check=True)


def headrace(*, compiled: bool) -> Kind:
    """As installed, or the build of `make compiled`."""
    return Kind(
        "headrace",
        lambda port: [str(HEADRACE), "serve", "--port", str(port)],
        HEADRACE_ENVIRONMENT | ({"PYTHONPATH": str(COMPILED)} if compiled else {}),
        _require_compiled if compiled else _require_headrace,
    )


KINDS = {
    "headrace": headrace(compiled=False),
    "reference": Kind(
        "reference",
        lambda port: ["node", str(REFERENCE / "start.mjs"), str(port)],
        prepare=_install_reference,
    ),
    "bare": Kind("bare", lambda port: [sys.executable, "-m", "bench.bare_server", str(port)]),
}


@contextmanager
def running(kind: Kind) -> Iterator[Target]:
    """A fresh server that listens; it is stopped, and killed if need be, at the end."""
    port = _free_port()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            kind.command(port),
            cwd=REPOSITORY,
            env={**os.environ, **kind.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            # If 50 replays exhaust the machine's memory, the server is to die, nothing else.
            Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")
            _wait_until_it_listens(process, port)
            yield Target(port, process.pid)
            if process.poll() is not None:
                raise ServerError(f"exited with {process.returncode} under load")
        except Exception as error:
            output.seek(0)
            tail = output.read()[-2000:].decode(errors="replace")
            raise ServerError(f"{kind.name}: {error}\n{tail}") from error
        finally:
            _stop(process)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        port: int = sock.getsockname()[1]
        return port


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"exited with {process.returncode} at start")
        with suppress(OSError), socket.create_connection((LOOPBACK, port), 1.0):
            return
        time.sleep(0.02)
    raise ServerError(f"did not listen within {START_TIMEOUT_S} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
