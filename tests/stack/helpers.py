"""What the tests of the stack say, read, and expect to be gone afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from headrace.stack.ports import FREE_RANGE
from headrace.stack.processes import PROC, Identity, in_session
from headrace.testing.server_queries import catch_up
from headrace.testing.stack_process import StackProcess
from headrace.testing.waiting import eventually

JSON = {"Content-Type": "application/json"}
SYNC_SECS = 300.0  # Spark's first batch on a machine that does much else


def event(key: str, kind: str = "message", operation: str = "set", **value: Any) -> dict[str, Any]:
    return {"key": key, "type": kind, "operation": operation, "value": value}


def read_all(client: httpx.Client, stream: str) -> list[dict[str, Any]]:
    """Every message of a stream; none where there is no stream yet."""
    path = f"/v1/stream/{stream}"
    if client.head(path).status_code == 404:
        return []
    return [message for answer in catch_up(client, path) for message in answer.json()]


def everything(stack: StackProcess) -> tuple[list[Identity], set[int]]:
    """Every process of a running stack, children included, and every port they listen on.

    Not those that Java takes from the kernel's range: once free they may be another's at once.
    """
    pids = [service.pid for service in stack.record.services if service.pid is not None]
    identities = [identity for pid in pids for identity in in_session(pid)]
    ports = listening(identity.pid for identity in identities)
    return [stack.record.supervisor, *identities], ports & set(FREE_RANGE)


def listening(pids: Iterable[int]) -> set[int]:
    """The TCP ports that these processes listen on."""
    sockets = {name for pid in pids for name in _open_files(pid) if name.startswith("socket:")}
    return {port for port, socket in _listeners() if socket in sockets}


def _listeners() -> Iterator[tuple[int, str]]:
    """Every TCP port of this machine that is listened on, and the socket that does."""
    for table in ("net/tcp", "net/tcp6"):
        for line in (PROC / table).read_text().splitlines()[1:]:
            fields = line.split()
            local, state, inode = fields[1], fields[3], fields[9]
            if state == "0A":
                yield int(local.rpartition(":")[2], 16), f"socket:[{inode}]"


def _open_files(pid: int) -> list[str]:
    found = []
    with suppress(OSError):
        for file in Path(PROC, str(pid), "fd").iterdir():
            with suppress(OSError):
                found.append(os.readlink(file))
    return found


def assert_nothing_is_left(identities: list[Identity], ports: set[int]) -> None:
    assert identities
    assert ports
    eventually(lambda: not any(i.is_alive for i in identities), "every process is gone")
    # Not by binding them: a connection of some other process may have one as its own end by now.
    eventually(lambda: ports.isdisjoint(port for port, _ in _listeners()), "no port is listened on")
