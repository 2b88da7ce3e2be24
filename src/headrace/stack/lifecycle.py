"""The stack as a whole: up, down and what is known about it. The command line only prints."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import httpx

from headrace.stack import health_check, processes
from headrace.stack.cleanup import end_recorded
from headrace.stack.ports import Ports
from headrace.stack.profiles import plan
from headrace.stack.state_directory import Recorded, StackRecord, StateDirectory
from headrace.stack.supervisor import Say, StackFailed, Supervisor, last_lines

DOWN_SECS = 60.0
DETACHED_START_SECS = 300.0
POLL_SECS = 0.05
STATUS_TIMEOUT_SECS = 3.0


class AlreadyUp(RuntimeError):
    """Another supervisor has this state directory."""


def up(
    profile: str,
    state: StateDirectory,
    ports: Ports,
    say: Say,
    on_ready: Callable[[StackRecord], None],
) -> None:
    """Run the stack until SIGINT, SIGTERM or SIGHUP; leave nothing behind."""
    if not state.acquire():
        raise AlreadyUp(
            f"A stack is already up in {state.path}: see `headrace stack status`, or end it with "
            "`headrace stack down`."
        )
    try:
        _end_leftovers(state, say)
        made = plan(profile, state, ports)
        for message in made.messages:
            say(message)
        supervisor = Supervisor(made.services, profile, state, secrets.token_hex(16), say)
        with _Signals(supervisor.stop, say):
            supervisor.run(on_ready)
    finally:
        state.release()


def _end_leftovers(state: StateDirectory, say: Say) -> None:
    left = state.read()
    if left is None:
        return
    ended = end_recorded(state, left)
    if ended:
        say(f"Ended what an earlier stack had left running: {', '.join(ended)}.")


class _Signals:
    """While the stack runs, the signals that would end this process end the stack first."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, stop: Callable[[], None], say: Say) -> None:
        self._stop = stop
        self._say = say

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._handle) for number in self.NUMBERS}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._say("Stopping.")
        self._stop()


def detach(arguments: Sequence[str], state: StateDirectory) -> StackRecord:
    """Start `headrace stack up` in the background; its record once everything runs."""
    state.create()
    command = [sys.executable, "-m", "headrace.cli", "stack", "up", *arguments]
    log = state.log("supervisor")
    with log.open("wb") as output:
        supervisor = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + DETACHED_START_SECS
    while supervisor.poll() is None:
        record = state.read()
        if record is not None and record.ready and record.supervisor.pid == supervisor.pid:
            return record
        if time.monotonic() > deadline:
            supervisor.terminate()
            supervisor.wait()
            raise StackFailed(f"The stack was not up within {DETACHED_START_SECS:g} s; see {log}.")
        time.sleep(POLL_SECS)
    raise StackFailed("\n".join(last_lines(log, 40)))


def down(state: StateDirectory) -> list[str]:
    """End the stack of this directory, whether its supervisor lives or not; the services ended."""
    record = state.read()
    if record is None:
        return []
    names = [service.name for service in record.services if service.identity is not None]
    if record.supervisor.is_alive:
        processes.send([record.supervisor], signal.SIGTERM)
        processes.wait_gone([record.supervisor], DOWN_SECS)
        processes.send([record.supervisor], signal.SIGKILL)
    left = state.read()
    if left is not None:
        end_recorded(state, left)
    return names


def live_health(services: Sequence[Recorded]) -> dict[str, str]:
    """What each service answers now; checked side by side, because one may hang."""
    with ThreadPoolExecutor(max_workers=max(1, len(services))) as pool:
        return dict(
            zip((service.name for service in services), pool.map(_live, services), strict=True)
        )


def _live(service: Recorded) -> str:
    if service.state == "done":
        return health_check.OK
    if service.identity is None or not service.identity.is_alive:
        return service.state if service.state in ("waiting", "backing off") else "not running"
    return health_check.check(service.health, STATUS_TIMEOUT_SECS)


def warnings(services: Sequence[Recorded]) -> list[str]:
    """The monitor's warnings; none if the stack has no monitor."""
    found: list[str] = []
    for service in services:
        if service.name == "monitor":
            try:
                answer = httpx.get(f"{service.address}/warnings", timeout=STATUS_TIMEOUT_SECS)
                found += answer.json()
            except (httpx.HTTPError, ValueError):
                continue  # its health says so already
    return found
