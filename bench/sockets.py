"""Sockets of the generator: many non-blocking ones for load, one blocking client for set-up."""

from __future__ import annotations

import resource
import select
import socket
from collections.abc import Iterable

from bench.wire import Response, WireError

LOOPBACK = "127.0.0.1"
CONNECT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 60.0


def raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connect(port: int) -> socket.socket:
    sock = socket.create_connection((LOOPBACK, port), CONNECT_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def send_request(sock: socket.socket, data: bytes) -> None:
    """Nothing else is in the socket's buffer, so a request of ordinary size fits whole."""
    if sock.send(data) != len(data):
        raise WireError("the socket's buffer did not take one request")


class Client:
    """One blocking connection, one request at a time: for set-up, never for load."""

    def __init__(self, port: int) -> None:
        self._sock = connect(port)
        self._sock.settimeout(REQUEST_TIMEOUT_S)
        self._buffer = memoryview(bytearray(256 * 1024))

    def call(self, data: bytes) -> Response:
        self._sock.sendall(data)
        response = Response(keep_body=True)
        while not response.feed(self._buffer[: self._sock.recv_into(self._buffer)]):
            pass
        return response

    def expect(self, data: bytes) -> Response:
        response = self.call(data)
        if not response.ok:
            raise WireError(f"{response.status} to {data[:80]!r}: {response.body[:200]!r}")
        return response

    def expect_all(self, requests: Iterable[bytes]) -> None:
        for data in requests:
            self.expect(data)

    def close(self) -> None:
        self._sock.close()


class Pool:
    """Non-blocking connections under one epoll, found by descriptor."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.epoll = select.epoll()
        self.by_fd: dict[int, socket.socket] = {}

    def open(self) -> socket.socket:
        sock = connect(self._port)
        sock.setblocking(False)
        self.by_fd[sock.fileno()] = sock
        self.epoll.register(sock.fileno(), select.EPOLLIN)
        return sock

    def drop(self, fd: int) -> None:
        self.epoll.unregister(fd)
        self.by_fd.pop(fd).close()

    def close(self) -> None:
        for fd in list(self.by_fd):
            self.drop(fd)
        self.epoll.close()
