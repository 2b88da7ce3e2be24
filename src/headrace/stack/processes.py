"""Processes and their identity: a pid together with its start time.

A pid is reused; the pair is not, not even across a reboot. Everything a service starts belongs to
its session or carries the stack's mark in its environment. Both are followed when it is ended.
Linux only: this reads /proc.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
MARK = "HEADRACE_STACK_MARK"  # in the environment of everything that a stack starts
POLL_SECS = 0.02


@dataclass(frozen=True)
class Identity:
    """One process that is or was: never another one with the same number."""

    pid: int
    started: str  # boot id and clock ticks since boot

    @property
    def is_alive(self) -> bool:
        found = identity_of(self.pid)
        return found == self


@dataclass(frozen=True)
class _Stat:
    state: str
    session: int
    started_ticks: str


def _stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text("latin-1")
    except OSError:
        return None
    # The command name may hold spaces and brackets; the fields start behind its last bracket.
    fields = text.rpartition(")")[2].split()
    return _Stat(state=fields[0], session=int(fields[3]), started_ticks=fields[19])


def identity_of(pid: int) -> Identity | None:
    """The process that has this pid now; None if there is none, or only its zombie."""
    stat = _stat(pid)
    if stat is None or stat.state in "ZX":
        return None
    boot = (PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
    return Identity(pid, f"{boot}/{stat.started_ticks}")


def _pids() -> Iterator[int]:
    for entry in os.listdir(PROC):
        if entry.isdigit():
            yield int(entry)


def in_session(leader: int) -> list[Identity]:
    """All processes in the session that `leader` leads or led."""
    return [
        identity
        for pid in _pids()
        if (stat := _stat(pid)) is not None
        and stat.session == leader
        and (identity := identity_of(pid)) is not None
    ]


def marked(mark: str) -> list[Identity]:
    """All processes with this stack's mark, except this one."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for pid in _pids():
        try:
            environ = (PROC / str(pid) / "environ").read_bytes()
        except OSError:  # gone meanwhile, or another user's
            continue
        if pid != os.getpid() and wanted in environ.split(b"\0"):
            identity = identity_of(pid)
            found += [identity] if identity else []
    return found


def send(identities: Iterable[Identity], number: int) -> None:
    for identity in identities:
        # The number could still be reused before the signal is sent, in microseconds in which the
        # kernel would have to hand out all others first.
        if identity.is_alive:
            try:
                os.kill(identity.pid, number)
            except ProcessLookupError:
                continue


def wait_gone(identities: Iterable[Identity], secs: float) -> bool:
    """Whether all of them are gone within `secs`."""
    left = list(identities)
    deadline = time.monotonic() + secs
    while left := [identity for identity in left if identity.is_alive]:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECS)
    return True


def end(leader: Identity, stop_signal: int, grace_secs: float) -> None:
    """Ask the leader to stop, then kill what is left of its session."""
    if leader.is_alive:
        send([leader], stop_signal)
        wait_gone([leader], grace_secs)
    left = in_session(leader.pid)
    send(left, signal.SIGKILL)
    wait_gone(left, grace_secs)
