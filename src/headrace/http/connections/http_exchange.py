"""The exchange of one request on an HTTP/1.1 connection: it answers once, and then is dead.

A connection answers many requests, one after another, and handlers keep what they were given: a
live read, a cold read on a worker, an append that waits for its sync. If all of them held the
connection, an answer that comes late or twice would reach the next request, which through a proxy
belongs to another client. So each holds an exchange, and the exchange forgets its connection with
the first of these:

    respond, end   the answer is complete
    abort          it is broken off
    detach         the client has left

Whatever is called afterwards does nothing, but for `hold`: a waiter that comes too late is notified
at once, since nothing else would ever end it.

A fault while an answer is written closes the connection: what of it was sent is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.http.exchange import Frame, Request, Waiter
from headrace.protocol.responses import Response


class AnswerPath(Protocol):
    """What an exchange needs of its connection."""

    writable: bool
    """Whether the transport takes more."""

    def is_lost(self) -> bool:
        """Whether what is written goes nowhere."""
        ...

    def respond(self, request: Request, response: Response) -> None: ...

    def start(self, request: Request, response: Response) -> None: ...

    def send(self, request: Request, frame: Frame) -> None: ...

    def end(self, request: Request) -> None: ...

    def abort(self) -> None: ...

    def fail(self, what: str) -> None:
        """While an exception is handled that `what` raised."""
        ...

    def hold(self, waiter: Waiter) -> None: ...


class HttpExchange:
    """The exchange of one request; it knows its connection until it has answered."""

    __slots__ = ("_connection", "_on_left", "begun", "request")

    def __init__(self, connection: AnswerPath, request: Request, begun: float) -> None:
        self._connection: AnswerPath | None = connection
        self._on_left: Callable[[], None] | None = None
        self.request = request
        self.begun = begun

    @property
    def writable(self) -> bool:
        connection = self._connection
        return connection is not None and connection.writable and not connection.is_lost()

    def respond(self, response: Response) -> None:
        # Forgotten first: a handler that answers twice, or late, must not reach the next request.
        # It did once, when the connection was the exchange of all its requests (decision 0069).
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.respond(self.request, response)
        except Exception:
            # Some of it may have been written.
            connection.fail("an answer")

    def start(self, response: Response) -> None:
        if self._connection is not None:
            self._connection.start(self.request, response)

    def send(self, frame: Frame) -> None:
        if self._connection is not None:
            self._connection.send(self.request, frame)

    def end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.end(self.request)
        except Exception:
            connection.fail("the end of an answer")

    def abort(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def hold(self, waiter: Waiter) -> None:
        if self._connection is None:
            waiter.on_disconnect()
        else:
            self._connection.hold(waiter)

    def detach(self) -> None:
        """The client is gone: later answers are dropped."""
        self._connection = None
        on_left, self._on_left = self._on_left, None
        if on_left is not None:
            on_left()

    def when_left(self, callback: Callable[[], None]) -> None:
        if self._connection is None:
            callback()
        else:
            self._on_left = callback
