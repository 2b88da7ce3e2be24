"""Bodies that come in pieces: short ones answered at once, long ones as the client takes them.

At most one piece is held for a client, counted with all that waits for clients, and sent in
windows: a piece is as large as the largest message. A client that stops taking is cut off after a
while, and so is an answer that cannot be completed: a body that ends early must not look whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from headrace.clock import monotonic
from headrace.errors import HeadraceError
from headrace.http.connections.send_windows import UnsentBudget
from headrace.http.deadlines import DeadlineQueue
from headrace.http.exchange import Exchange, Frame
from headrace.protocol import responses
from headrace.protocol.responses import Response

TURN_SECS: Final = 0.005
PIECE_BYTES: Final = 256 * 1024

PieceReply = Callable[[bytes | HeadraceError | None], None]


class Pieces(Protocol):
    def next(self, reply: PieceReply) -> None:
        """The next piece, at once or later; None when there is none left."""
        ...

    def close(self) -> None:
        """Nothing more is asked for. Called once."""
        ...


class StreamedBodies:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, unsent: UnsentBudget, stalled_secs: float
    ) -> None:
        self._loop = loop
        self.stalled = DeadlineQueue(loop, stalled_secs)
        self._unsent = unsent

    def send(self, head: Response, pieces: Pieces, exchange: Exchange) -> None:
        """Answer with `head` and a body of `pieces`."""
        body = _Body(self._loop, self.stalled, self._unsent, head, pieces, exchange)
        exchange.hold(body)
        body.pump()


class _Body:
    """One answer; collects until a piece is full, and from then on streams."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stalled: DeadlineQueue,
        unsent: UnsentBudget,
        head: Response,
        pieces: Pieces,
        exchange: Exchange,
    ) -> None:
        self._loop = loop
        self._stalled = stalled
        self._unsent = unsent
        self._head = head
        self._pieces = pieces
        self._exchange = exchange
        # Up to a piece is collected before anything is sent: a short body goes out with its length,
        # and a failure before that has a status of its own.
        self._collected: list[bytes] | None = []
        self._collected_bytes = 0
        self._rest = memoryview(b"")
        self._counted_bytes = 0
        self._pumping = False
        self._asking = False
        self._over = False

    def pump(self) -> None:
        """Ask for pieces while the client takes them; an answer that comes at once is met here."""
        if self._pumping:
            return
        self._pumping = True
        self._stalled.remove(self)
        turn_ends = monotonic() + TURN_SECS
        while not self._over and not self._asking and self._has_room():
            if self._rest:
                self._send_window()
            else:
                self._ask()
            if monotonic() > turn_ends:
                # A client that takes all at once, on a fast machine: others have their turn.
                self._loop.call_soon(self.pump)
                break
        self._pumping = False
        # It is the client's deadline: it does not run while a piece is being read.
        if not self._over and not self._asking:
            self._stalled.add(self)

    def _has_room(self) -> bool:
        if self._collected is not None:
            return True
        if self._exchange.writable and not self._rest:
            self._count(-self._counted_bytes)  # the client has taken the last of it
            if self._unsent.is_exceeded:
                self._unsent.wait(self)
                return False
        return self._exchange.writable

    def _ask(self) -> None:
        self._asking = True
        self._pieces.next(self._take)

    def _send_window(self) -> None:
        window, self._rest = self._rest[:PIECE_BYTES], self._rest[PIECE_BYTES:]
        self._exchange.send(Frame(bytes(window)))
        self._unsent.taken(self, len(window))

    def _count(self, count: int) -> None:
        self._counted_bytes += count
        if count > 0:
            self._unsent.add(count)
        elif count:
            self._unsent.remove(-count)

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
        # Before this piece counts: an answer that exceeds the budget by itself is sent, if no other
        # does.
        had_room = not self._unsent.is_exceeded
        self._count(len(piece))
        if self._collected is None:
            self._rest = memoryview(piece)
            return
        self._collected.append(piece)
        self._collected_bytes += len(piece)
        if self._collected_bytes <= PIECE_BYTES:
            return
        if not had_room:
            self._fail(self._unsent.refusal())
            return
        self._rest = memoryview(b"".join(self._collected))
        self._collected = None
        self._exchange.start(self._head)
        self._unsent.begin(self)

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
            self._unsent.leave(self)
            self._unsent.end(self)
            self._count(-self._counted_bytes)
            self._rest = memoryview(b"")
            self._pieces.close()

    def on_writable(self) -> None:
        self.pump()

    def on_room(self) -> None:
        self.pump()

    def on_deadline(self) -> None:
        self._close()
        self._exchange.abort()

    def on_fault(self, fault: HeadraceError) -> None:
        self._fail(fault)

    def on_cut(self) -> None:
        self.on_deadline()

    def on_disconnect(self) -> None:
        self._close()

    def on_drain(self) -> None:
        """It has an end, and is let come to it."""
