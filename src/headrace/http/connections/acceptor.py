"""Accepting connections: counted from the first moment, never more than there are descriptors for.

A connection counts from `accept` until its socket is closed, TLS handshakes included. Past the
limit a few more are accepted only to be answered: with 503, or as a health probe. Past those
nothing is accepted, and clients wait in the kernel's backlog. Descriptors for everything else the
process opens stay free: a journal that cannot open its next segment stalls every writer.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import resource
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from headrace.clock import monotonic
from headrace.errors import Overloaded
from headrace.http.connections.connection import Connection, Shared
from headrace.http.exchange import Client, Frame, Request, Waiter
from headrace.protocol import responses
from headrace.protocol.headers import Headers
from headrace.protocol.responses import Response
from headrace.subscriptions.delivery import SENDS_MAX

logger = logging.getLogger(__name__)

BACKLOG: Final = 1024
# What the kernel keeps for one client besides what is on the wire; without it, 4 MiB (tcp_wmem) of
# memory that no limit of ours counts. What is on the wire may grow with the distance as before.
UNSENT_IN_KERNEL_BYTES: Final = 128 * 1024
SURPLUS_MAX: Final = 32  # connections past the limit, each for a moment
# What storage may have open besides what it opened at the start: the journal 4, a checkpoint 80
# (64 of them packs), four workers 12 each.
STORAGE_DESCRIPTORS: Final = 144
# A webhook has its socket, or one that asks for its receiver's address.
WEBHOOK_DESCRIPTORS: Final = 2 * SENDS_MAX
OTHER_DESCRIPTORS: Final = 16  # certificates read again, modules imported late
RESERVED_DESCRIPTORS: Final = STORAGE_DESCRIPTORS + WEBHOOK_DESCRIPTORS + OTHER_DESCRIPTORS

_ACCEPTED_PER_TURN: Final = 64  # then others have their turn of the event loop
_WITHOUT_DESCRIPTORS_SECS: Final = 0.25
_SURPLUS_WAIT_SECS: Final = 0.25  # for a request that came with the connection
_SURPLUS_LINGER_SECS: Final = 1.0  # for the rest of a request, which would destroy the answer
_SURPLUS_HANDSHAKE_SECS: Final = 1.0
_PROBE: Final = re.compile(rb"(?:GET|HEAD) /(?:healthz|readyz|metrics)(?:\?[^ ]*)? HTTP/1\.1\r\n")
_PROBE_BYTES_MAX: Final = 4096
_PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def raise_descriptor_limit() -> int:
    """As far as the system lets us; the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connections_max(configured: int) -> int:
    """As many as asked for, but only as many as leave the reserve.

    Call it when storage is open: what it holds all the time is counted by looking.
    """
    limit = raise_descriptor_limit()
    # A client may fill every place there is. If its connections took the last descriptors, the
    # journal could not open its next segment; that once ended the process.
    free = limit - len(os.listdir("/proc/self/fd")) - SURPLUS_MAX
    # Where the limit is very low, half of what there is: storage waits for the rest.
    available = max(1, free - min(RESERVED_DESCRIPTORS, free // 2))
    if available < 1000 and (not configured or available < configured):
        logger.warning(
            "the limit of %d open files leaves room for %d connections; raise it (ulimit -Hn, "
            "LimitNOFILE=) to serve more",
            limit,
            available,
        )
    return min(configured, available) if configured else available


def listen(host: str, port: int) -> list[socket.socket]:
    """One listening socket for each address of `host`."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # Accepted sockets inherit it, so no connection spends a system call on it.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_IN_KERNEL_BYTES)
            sock.setblocking(False)
            sock.bind(address)
            sock.listen(BACKLOG)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


class Acceptor:
    """Accepts from listening sockets while there is room for another connection."""

    def __init__(
        self,
        shared: Shared,
        loop: asyncio.AbstractEventLoop,
        sockets: list[socket.socket],
        limit: int,
        tls: ssl.SSLContext | None,
        handshake_timeout_secs: float,
    ) -> None:
        self.sockets = sockets
        self.open_count = 0
        """Connections that hold a descriptor: handshakes and refused ones, too."""
        self._shared = shared
        self._loop = loop
        self._limit = limit
        self._tls = tls
        self._handshake_timeout_secs = handshake_timeout_secs
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = False
        self._closed = False
        shared.on_closed = self.connection_closed

    def start(self) -> None:
        if self._accepting or self._closed:
            return
        self._accepting = True
        for sock in self.sockets:
            self._loop.add_reader(sock, self._accept, sock)

    def _pause(self) -> None:
        """Leave the others in the kernel's backlog."""
        if self._accepting:
            self._accepting = False
            for sock in self.sockets:
                self._loop.remove_reader(sock)

    def close(self) -> None:
        self._pause()
        self._closed = True
        for task in self._handshakes:
            task.cancel()
        for sock in self.sockets:
            sock.close()

    def connection_closed(self) -> None:
        self.open_count -= 1
        if not self._accepting:
            self.start()

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(_ACCEPTED_PER_TURN):
            if self.open_count >= self._limit + SURPLUS_MAX:
                self._pause()
                return
            try:
                client, _ = sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # A listening socket stays readable while a client waits on it: without a pause this
                # would be called again at once, for ever.
                if error.errno in _PASSING:
                    logger.warning("no connection can be accepted: %s", error.strerror)
                    self._pause()
                    self._loop.call_later(_WITHOUT_DESCRIPTORS_SECS, self.start)
                    return
                continue  # that client has left already
            self._admit(client)

    def _admit(self, client: socket.socket) -> None:
        client.setblocking(False)
        is_surplus = self.open_count >= self._limit
        if is_surplus:
            self._shared.application.metrics.connections_refused += 1
        protocol = self._surplus() if is_surplus else self.new_connection()
        self.open_count += 1
        task = self._loop.create_task(self._connect(client, protocol))
        self._handshakes.add(task)
        task.add_done_callback(partial(self._connected, client, protocol))

    async def _connect(self, client: socket.socket, protocol: Connection | Surplus) -> None:
        timeout_secs = self._handshake_timeout_secs
        if isinstance(protocol, Surplus):
            timeout_secs = min(timeout_secs, _SURPLUS_HANDSHAKE_SECS)
        await self._loop.connect_accepted_socket(
            [protocol].pop,  # called once
            client,
            ssl=self._tls,
            ssl_handshake_timeout=timeout_secs if self._tls is not None else None,
        )

    def _connected(
        self, client: socket.socket, protocol: Connection | Surplus, task: asyncio.Task[None]
    ) -> None:
        self._handshakes.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            return
        # The TLS handshake failed or timed out, or the server stops, maybe before it began.
        logger.debug("cannot set up an accepted connection: %r", error)
        client.close()
        if isinstance(protocol, Connection) and protocol in self._shared.connections:
            # Cancelled in the moment it was made: uvloop closes it and says nothing.
            protocol.connection_lost(None)
        else:
            self.connection_closed()

    def new_connection(self) -> Connection:
        return Connection(self._shared)

    def _surplus(self) -> Surplus:
        return Surplus(self._shared, self._limit, self.connection_closed)


class Surplus(asyncio.Protocol):
    """A connection past the limit: a health probe is answered, any other request gets 503.

    It is an Exchange for that one answer.
    """

    def __init__(self, shared: Shared, limit: int, on_closed: Callable[[], None]) -> None:
        self.writable = True
        self._shared = shared
        self._limit = limit
        self._on_closed = on_closed
        self._received = b""
        self._answered = False
        self._head_only = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_SURPLUS_WAIT_SECS, self._give_up)

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._on_closed()

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return
        self._received += data
        if b"\r\n\r\n" in self._received:
            if _PROBE.match(self._received):
                self._answer_probe()
            else:
                self._refuse()
        elif len(self._received) > _PROBE_BYTES_MAX:
            self._refuse()

    def _answer_probe(self) -> None:
        first, *lines = self._received.partition(b"\r\n\r\n")[0].split(b"\r\n")
        method, target, _ = first.split(b" ", 2)
        self._head_only = method == b"HEAD"
        fields = (line.partition(b":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in fields}
        self._shared.application.handle(self._request(method, target, headers), self)

    def _give_up(self) -> None:
        if self._answered:
            self._transport.abort()
        else:
            self._refuse()

    def _refuse(self) -> None:
        request = self._request(b"", b"", {})
        request.operation = "refused"
        response = responses.problem(Overloaded("connections", self._limit))
        self._shared.observe(request, response.status, len(response.body))
        self.respond(response)

    def _request(self, method: bytes, target: bytes, headers: Headers) -> Request:
        name = self._transport.get_extra_info("peername")
        client = Client(name[0] if isinstance(name, tuple) else "unix", self._shared.scheme)
        return Request(method, target, headers, b"", client, monotonic())

    def respond(self, response: Response) -> None:
        if self._answered:
            return
        self._answered = True
        head = self._shared.response_head.lines(response.status, {}) + response.headers
        head += b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(response.body)
        self._transport.write(head if self._head_only else head + response.body)
        self._timer.cancel()
        if not self._received or self._received.endswith(b"\r\n\r\n"):
            self._transport.close()
            return
        # More of a request is on its way: a socket that is closed would answer it with a reset.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_SURPLUS_LINGER_SECS, self._give_up)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def start(self, response: Response) -> None:
        """Probes are answered whole."""

    def send(self, frame: Frame) -> None:
        """Probes are answered whole."""

    def end(self) -> None:
        """Probes are answered whole."""

    def abort(self) -> None:
        self._transport.abort()

    def when_left(self, callback: Callable[[], None]) -> None:
        """Probes are answered at once."""

    def hold(self, waiter: Waiter) -> None:
        """Probes do not wait."""
