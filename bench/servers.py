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
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.machine import REPOSITORY
from bench.rows.base import Target
from bench.sockets import LOOPBACK
from headrace.testing.ports import free_port

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
REFERENCE = REPOSITORY / "bench" / "reference"
HEADRACE = REPOSITORY / "bin" / "headrace"
PYTHON = REPOSITORY / ".venv" / "bin" / "python"
DATA = REPOSITORY / "bench" / "data"
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
class ServerKind:
    name: str
    command: Callable[[int], list[str]]
    environment: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[], None] = _nothing
    stores: bool = False
    directory: Path = REPOSITORY


def _require_headrace() -> None:
    if not PYTHON.exists():
        raise ServerError(f"{PYTHON} is missing: run make setup")


def _install_reference() -> None:
    if (REFERENCE / "node_modules").exists():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise ServerError("the reference server needs Node 20 and npm")
    subprocess.run([npm, "ci"], cwd=REFERENCE, check=True)


def run_from_sources() -> None:
    """From now on, though there be a compiled build."""
    os.environ["HEADRACE_PURE"] = "1"


def build() -> str:
    """Which build of Headrace is measured."""
    _require_headrace()
    said = subprocess.run([HEADRACE, "--version"], check=True, capture_output=True, text=True)
    return "compiled" if "compiled" in said.stdout else "pure"


KINDS = {
    "headrace": ServerKind(
        "headrace",
        lambda port: [str(HEADRACE), "serve", "--port", str(port)],
        HEADRACE_ENVIRONMENT,
        _require_headrace,
    ),
    "reference": ServerKind(
        "reference",
        lambda port: ["node", str(REFERENCE / "start.mjs"), str(port)],
        prepare=_install_reference,
    ),
    "bare": ServerKind("bare", lambda port: [sys.executable, "-m", "bench.bare_server", str(port)]),
}


def _storing(mode: str) -> ServerKind:
    environment = HEADRACE_ENVIRONMENT | {"DS_STORAGE__MODE": mode}
    return replace(KINDS["headrace"], name=mode, environment=environment, stores=True)


STORING = {
    **{mode: _storing(mode) for mode in ("file-durable", "acid", "file-fast")},
    "reference-file": replace(KINDS["reference"], name="reference-file", stores=True),
    "sendfile": ServerKind(
        "sendfile",
        lambda port: [sys.executable, "-m", "bench.sendfile_server", str(port)],
        stores=True,
    ),
}
"""Servers that store: each run has a data directory of its own, on this repository's disk."""


@contextmanager
def running(kind: ServerKind) -> Iterator[Target]:
    """A fresh server that listens; it is stopped, and killed if need be, at the end."""
    if not kind.stores:
        with _running(kind) as target:
            yield target
        return
    DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DATA) as directory:
        place = {"DS_STORAGE__DATA_DIR": directory, "BENCH_DATA_DIR": directory}
        with _running(replace(kind, environment=kind.environment | place)) as target:
            yield target


@contextmanager
def _running(kind: ServerKind) -> Iterator[Target]:
    port = free_port()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            kind.command(port),
            cwd=kind.directory,
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
