"""The table of a connection's states is what connections do: no other change, and each of them."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from headrace.http.connections import acceptor, connection
from headrace.http.connections.connection import Connection, ConnectionState
from headrace.testing.in_process import InProcessServer
from headrace.testing.waiting import eventually

pytestmark = pytest.mark.skipif(
    not str(connection.__file__).endswith(".py"), reason="a compiled class cannot be recorded"
)

ROW = re.compile(r"^    (IDLE|BUSY|UNTAKEN|any) +([A-Z]+)  ", re.MULTILINE)
LARGE_BYTES = 8 * 1024 * 1024
BYTES = {"Content-Type": "application/octet-stream"}

Change = tuple[ConnectionState, ConnectionState]


def table() -> set[Change]:
    """The changes that the docstring lists, without those to CLOSING, which any state has."""
    rows = ROW.findall(connection.__doc__ or "")
    return {
        (ConnectionState[before], ConnectionState[after])
        for before, after in rows
        if before != "any"
    }


class Recording(Connection):
    """Notes each change of its state."""

    made: list[Recording]
    changes: set[Change]

    def __init__(self, shared: connection.Shared) -> None:
        self._now: ConnectionState | None = None
        super().__init__(shared)
        self.made.append(self)

    @property
    def _state(self) -> ConnectionState:
        assert self._now is not None
        return self._now

    @_state.setter
    def _state(self, state: ConnectionState) -> None:
        if self._now not in (None, state):
            self.changes.add((self._now, state))
        self._now = state


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessServer]:
    Recording.made, Recording.changes = [], set()
    monkeypatch.setattr(acceptor, "Connection", Recording)
    with InProcessServer() as running:
        yield running


def connected(server: InProcessServer, *, receive_bytes: int = 0) -> socket.socket:
    address = urlsplit(server.url)
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(30)
    client.connect((address.hostname, address.port))
    return client


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", "")).encode()


def until_closed(client: socket.socket) -> bytes:
    received = b""
    while data := client.recv(1 << 20):
        received += data
    return received


def states() -> list[ConnectionState]:
    return [made._state for made in Recording.made]


def seen(*change: ConnectionState) -> None:
    eventually(lambda: change in Recording.changes, f"{change[0]} becomes {change[1]}")


def test_connections_change_their_state_as_the_table_says(server: InProcessServer) -> None:
    url = f"{server.url}/v1/stream/states"
    with httpx.Client(trust_env=False) as http:
        http.put(url, headers=BYTES)
        for _ in range(LARGE_BYTES >> 20):
            http.post(url, headers=BYTES, content=b"x" * (1 << 20))
    seen(ConnectionState.IDLE, ConnectionState.BUSY)
    seen(ConnectionState.BUSY, ConnectionState.IDLE)

    with connected(server, receive_bytes=4096) as slow:
        slow.sendall(get("/v1/stream/states?offset=-1"))
        seen(ConnectionState.BUSY, ConnectionState.UNTAKEN)
        slow.sendall(get("/v1/stream/states?offset=now", "Connection: close"))
        assert until_closed(slow).count(b"HTTP/1.1 200 OK") == 2, "the second is run after that"
    seen(ConnectionState.UNTAKEN, ConnectionState.IDLE)

    with connected(server) as reader:
        reader.sendall(get("/v1/stream/states?offset=now&live=sse"))
        seen(ConnectionState.BUSY, ConnectionState.STREAMING)
    seen(ConnectionState.STREAMING, ConnectionState.CLOSING)

    with connected(server) as malformed:
        malformed.sendall(b"NOT HTTP\r\n\r\n")
        assert until_closed(malformed).startswith(b"HTTP/1.1 400")
    seen(ConnectionState.IDLE, ConnectionState.DISCARDING)

    with connected(server) as idle:
        idle.sendall(get("/healthz"))
        eventually(lambda: ConnectionState.IDLE in states(), "the answer is complete")
        waiting = next(made for made in Recording.made if made._state is ConnectionState.IDLE)
        server.call_soon(waiting.pause_writing)
        seen(ConnectionState.IDLE, ConnectionState.UNTAKEN)
        server.call_soon(waiting.resume_writing)
        eventually(lambda: waiting._state is ConnectionState.IDLE, "it goes on")

    eventually(lambda: set(states()) == {ConnectionState.CLOSING}, "every connection ends")
    assert {
        change for change in Recording.changes if change[1] is not ConnectionState.CLOSING
    } == table()
