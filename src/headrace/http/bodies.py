"""Bodies that come in pieces: short ones answered at once, long ones as the client takes them.

At most one piece is held for a client. A client that stops taking is cut off after a while, and
so is an answer that cannot be completed: a body that ends early must not look whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from headrace.errors import HeadraceError
from headrace.http.deadlines import DeadlineQueue
from headrace.http.exchange import Exchange, Frame
from headrace.protocol import responses
from headrace.protocol.responses import Response

PIECE_BYTES: Final = 256 * 1024

PieceReply = Callable[[bytes | HeadraceError | None], None]


class Pieces(Protocol):
    def next(self, reply: PieceReply) -> None:
        """The next piece, at once or later; None when there is none left."""
        ...

    def close(self) -> None:
        """Nothing more is asked for. Called once."""
        ...


class Bodies:
    def __init__(self, loop: asyncio.AbstractEventLoop, stalled_secs: float) -> None:
        self.stalled = DeadlineQueue(loop, stalled_secs)

    def send(self, head: Response, pieces: Pieces, exchange: Exchange) -> None:
        """Answer with `head` and a body of `pieces`."""
        body = _Body(self.stalled, head, pieces, exchange)
        exchange.hold(body)
        body.pump()


class _Body:
    """One answer; collects until a piece is full, and from then on streams."""

    def __init__(
        self, stalled: DeadlineQueue, head: Response, pieces: Pieces, exchange: Exchange
    ) -> None:
        self._stalled = stalled
        self._head = head
        self._pieces = pieces
        self._exchange = exchange
        self._collected: list[bytes] | None = []
        self._collected_bytes = 0
        self._pumping = False
        self._asking = False
        self._over = False

    def pump(self) -> None:
        """Ask for pieces while the client takes them; an answer that comes at once is met here."""
        if self._pumping:
            return
        self._pumping = True
        self._stalled.remove(self)
        while not self._over and not self._asking and self._has_room():
            self._asking = True
            self._pieces.next(self._take)
        self._pumping = False
        if not self._over and not self._asking:
            self._stalled.add(self)

    def _has_room(self) -> bool:
        return self._collected is not None or self._exchange.writable

    def _take(self, piece: bytes | HeadraceError | None) -> None:
        self._asking = False
        if self._over:
            return
        if isinstance(piece, HeadraceError):
            self._fail(piece)
        elif piece is None:
            self._finish()
        else:
            self._put(piece)
            self.pump()

    def _put(self, piece: bytes) -> None:
        if self._collected is None:
            self._exchange.send(Frame(piece))
            return
        self._collected.append(piece)
        self._collected_bytes += len(piece)
        if self._collected_bytes > PIECE_BYTES:
            body, self._collected = b"".join(self._collected), None
            self._exchange.start(self._head)
            self._exchange.send(Frame(body))

    def _finish(self) -> None:
        self._close()
        if self._collected is None:
            self._exchange.end()
        else:
            body = b"".join(self._collected)
            self._exchange.respond(Response(self._head.status, self._head.headers, body))

    def _fail(self, error: HeadraceError) -> None:
        self._close()
        if self._collected is None:
            self._exchange.abort()
        else:
            self._exchange.respond(responses.problem(error))

    def _close(self) -> None:
        if not self._over:
            self._over = True
            self._stalled.remove(self)
            self._pieces.close()

    def on_writable(self) -> None:
        self.pump()

    def on_deadline(self) -> None:
        self._close()
        self._exchange.abort()

    def on_fault(self, fault: HeadraceError) -> None:
        self._fail(fault)

    def on_disconnect(self) -> None:
        self._close()

    def on_drain(self) -> None:
        """It has an end, and is let come to it."""
