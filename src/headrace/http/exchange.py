"""One request and the way back to its client, the same for every transport.

Handlers see a Request and an Exchange. The HTTP/1.1 connection and the ASGI application each
provide an Exchange; neither knows the protocol, and no handler knows a socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from headrace.http.permissions import Guard
from headrace.protocol.headers import Headers
from headrace.protocol.requests import Append
from headrace.protocol.responses import Response


class Budget(Protocol):
    """Bytes of request bodies that are in flight."""

    def release(self, count: int) -> None: ...


class Client(NamedTuple):
    """The peer: its address, the scheme it used, and the path we are mounted at."""

    address: str
    scheme: str = "http"
    mount: str = ""


class ParsedHead:
    """What appends share whose heads differ in the target, Producer-Seq and Content-Length only.

    `model` is what the first of them was parsed to, without its body.
    """

    __slots__ = ("model",)

    def __init__(self) -> None:
        self.model: Append | None = None


class Request:
    """A complete request; `http_11` and what follows concern the connection it came on."""

    __slots__ = (
        "_dropped_bytes",
        "body",
        "budget",
        "client",
        "guard",
        "headers",
        "http_11",
        "keep_alive",
        "keeps_body",
        "method",
        "operation",
        "parsed_head",
        "reserved_bytes",
        "started",
        "target",
    )

    def __init__(
        self,
        method: bytes,
        target: bytes,
        headers: Headers,
        body: bytes,
        client: Client,
        started: float,
        parsed_head: ParsedHead | None = None,
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.client = client
        self.started = started
        self.http_11 = True
        self.keep_alive = True
        self.reserved_bytes = 0
        self.budget: Budget | None = None
        self.keeps_body = False
        self._dropped_bytes = 0
        self.operation = "other"
        self.guard: Guard | None = None
        self.parsed_head = parsed_head

    @property
    def body_bytes(self) -> int:
        """How long the body was, also once it was dropped."""
        return len(self.body) + self._dropped_bytes

    def drop_body(self) -> None:
        """Nobody needs it any more, and the request may be kept for long: by a poll, say."""
        self._dropped_bytes += len(self.body)
        self.body = b""

    def release_body(self) -> None:
        """Its body is gone, or counted elsewhere; with `keeps_body` that is after the handler."""
        count, self.reserved_bytes = self.reserved_bytes, 0
        if count and self.budget is not None:
            self.budget.release(count)


class Frame:
    """A piece of a streamed body, encoded once and shared by every reader that gets it."""

    __slots__ = ("_chunked", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._chunked: bytes | None = None

    @property
    def chunked(self) -> bytes:
        if self._chunked is None:
            self._chunked = b"%x\r\n%b\r\n" % (len(self.raw), self.raw)
        return self._chunked


class Waiter(Protocol):
    """The owner of an exchange that stays open: a live read, a streamed body."""

    def on_writable(self) -> None:
        """The client has taken what was sent; more may follow."""
        ...

    def on_disconnect(self) -> None:
        """The client is gone; nothing can be sent any more."""
        ...

    def on_drain(self) -> None:
        """The server is shutting down: finish, so that the client reconnects elsewhere."""
        ...


class Exchange(Protocol):
    """The way back to one client, for one request."""

    @property
    def writable(self) -> bool:
        """Whether the client keeps up with what is sent."""
        ...

    def respond(self, response: Response) -> None:
        """Answer completely. Once per request, unless `start` was called."""
        ...

    def start(self, response: Response) -> None:
        """Answer with a head; the body follows through `send` until `end`."""
        ...

    def send(self, frame: Frame) -> None: ...

    def end(self) -> None: ...

    def abort(self) -> None:
        """Break off, so that what was sent cannot be taken for a whole answer."""
        ...

    def when_left(self, callback: Callable[[], None]) -> None:
        """Call it once the client has left, if that is before the answer; at once if it has."""
        ...

    def hold(self, waiter: Waiter) -> None:
        """`waiter` answers later, and gets the events of the client until then."""
        ...
