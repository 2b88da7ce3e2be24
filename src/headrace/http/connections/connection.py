"""One HTTP/1.1 connection: requests run in order, responses written, backpressure both ways.

Requests run one after another: a pipelined request waits until the one before it is answered, so
it sees that one's effect. Each has an exchange of its own, which is dead once it was answered: a
late or second answer is dropped, and above all never reaches the next request. Nothing here
knows a rule of the protocol above HTTP.

The state of a connection, `ConnectionState`. An exchange is set in BUSY and STREAMING only:

    IDLE        no request is under way; the next one may run
    BUSY        a request is under way, and its answer has not begun, or is a large one being sent
    UNTAKEN     the last answer is complete, but the client has not taken all of it
    STREAMING   an answer without a length has begun; the connection ends with it
    DISCARDING  a refusal was sent; what still comes is read and dropped
    CLOSING     nothing more is sent

    from                  to          by
    IDLE                  BUSY        a request runs (`_run_ready`)
    BUSY                  IDLE        its answer is complete (`_answered`)
    BUSY                  UNTAKEN     the same, while the transport's buffer is full
    IDLE                  UNTAKEN     the buffer fills (`pause_writing`)
    UNTAKEN               IDLE        the buffer has drained (`resume_writing`)
    BUSY                  STREAMING   an answer without a length begins (`start`)
    IDLE                  DISCARDING  what was received is refused (`_refuse`)
    any                   CLOSING     end of the answer after `Connection: close`, drain, deadline,
                                      a defect, or the client has left

Orthogonal to that, because each can hold in several states:

    writable     the transport takes more; cleared by `pause_writing`
    _keep_alive  the connection stays open after the request under way
    _running     `_run` is on the stack: an answer within it must not run the next request, or the
                 stack would grow with every pipelined request
    _in_line     `Turns` will call `take_turn`, which goes on with requests or a large answer

Requests run while the state is IDLE and neither `_running` nor `_in_line` is set. `check_deadline`
bounds every state: IDLE by the keep-alive, or the deadline of a request that is arriving; BUSY by
`answer_secs`; UNTAKEN, DISCARDING and CLOSING by how long a client may take for what it was sent;
STREAMING by the sender of the answer (`live`, `StreamedBodies`), which sees how it is taken.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, cast

from headrace.clock import monotonic
from headrace.errors import AnswerTimeout, HeadraceError
from headrace.http.connections.access_log import log_access
from headrace.http.connections.answer_bytes import (
    CONTINUE,
    END,
    END_EMPTY,
    LAST_CHUNK,
    head_with_length,
    head_without_length,
    whole_answer,
)
from headrace.http.connections.departure import has_left
from headrace.http.connections.http_exchange import HttpExchange
from headrace.http.connections.large_bodies import BodyReceiver, LargeBody
from headrace.http.connections.reader import (
    BODY_BYTES_PER_SEC_MIN,
    BodyBudget,
    ReaderLimits,
    RequestReader,
)
from headrace.http.connections.request_turns import READS_BETWEEN_LOOKS, TURN_SECS, Turns
from headrace.http.connections.response_head import ResponseHead
from headrace.http.connections.send_windows import SMALL_ANSWER_BYTES, LargeAnswer, UnsentBudget
from headrace.http.exchange import Client, Frame, Request, Waiter
from headrace.http.routes import Application
from headrace.protocol import responses
from headrace.protocol.responses import WITHOUT_BODY, Response


class ConnectionState(Enum):
    """See the tables at the top."""

    IDLE = "idle"
    BUSY = "busy"
    UNTAKEN = "untaken"
    STREAMING = "streaming"
    DISCARDING = "discarding"
    CLOSING = "closing"


# Read for every request: a constant of the module costs less than an attribute of the class.
IDLE: Final = ConnectionState.IDLE
BUSY: Final = ConnectionState.BUSY
UNTAKEN: Final = ConnectionState.UNTAKEN
STREAMING: Final = ConnectionState.STREAMING
DISCARDING: Final = ConnectionState.DISCARDING
CLOSING: Final = ConnectionState.CLOSING

logger = logging.getLogger(__name__)

# A refused client may still be sending: its bytes are read and dropped for this long, because a
# reset would destroy the answer before it is read.
_LINGER_SECS: Final = 2.0


@dataclass(slots=True)
class WriterLimits:
    """Bounds on what waits to be taken by clients."""

    keep_alive_secs: float = 75  # nginx
    stalled_secs: float = 30  # how long a client may take nothing of an answer
    live_send_buffer_bytes: int = 64 * 1024  # the kernel's part of a live reader
    live_queue_bytes: int = 32 * 1024  # our part
    answer_secs: float = 60  # how long a request may wait for its answer; nginx: 60
    long_poll_secs: float = 30  # and how much longer one that waits for more to read


def _nothing() -> None:
    """The default of `Shared.on_closed`."""


@dataclass(slots=True)
class Shared:
    """What the connections of one server share."""

    application: Application
    response_head: ResponseHead
    reading: ReaderLimits
    writing: WriterLimits
    bodies: BodyBudget
    turns: Turns
    unsent: UnsentBudget
    scheme: str = "http"
    log_access: bool = False
    connections: set[Connection] = field(default_factory=set)
    on_closed: Callable[[], None] = _nothing
    draining: bool = False
    observe: Callable[[Request, int, int], float] = field(init=False)

    def __post_init__(self) -> None:
        self.observe = self.application.metrics.observe


class Connection(asyncio.Protocol):
    __slots__ = (
        "_deadline",
        "_exchange",
        "_in_line",
        "_keep_alive",
        "_large",
        "_reader",
        "_receiver",
        "_running",
        "_shared",
        "_state",
        "_transport",
        "_unsent_bytes",
        "_waiter",
        "writable",
    )

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._reader: RequestReader | None = None
        self._receiver: BodyReceiver | None = None
        self._exchange: HttpExchange | None = None  # that of the request under way
        self._waiter: Waiter | None = None
        self._state = IDLE
        self._keep_alive = True
        self._running = False
        self._in_line = False  # for another turn
        self._deadline = 0.0
        self._unsent_bytes = 0
        self._large: LargeAnswer | None = None
        self.writable = True

    # -- the life of the connection --------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        try:
            self._open(transport)
        except Exception:
            self.fail("opening a connection")

    def _open(self, transport: asyncio.BaseTransport) -> None:
        shared = self._shared
        if shared.draining:
            # Accepted when the drain began, which went over the connections there were.
            self.abort()
            return
        shared.connections.add(self)
        name = transport.get_extra_info("peername")
        client = Client(name[0] if isinstance(name, tuple) else "unix", shared.scheme)
        self._reader = RequestReader(shared.reading, shared.bodies, shared.response_head, client)
        self._deadline = shared.response_head.deadline(shared.writing.keep_alive_secs)

    def connection_lost(self, error: Exception | None) -> None:
        connections = self._shared.connections
        if self not in connections:
            return  # it was given up while it was being made: see `Acceptor`
        connections.remove(self)
        self._shared.on_closed()
        self._state = CLOSING
        self._dismiss_receiver()
        self._drop_reader()
        self._forget_unsent()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.detach()
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.on_disconnect()

    def eof_received(self) -> bool:
        """A client that has finished sending still gets an answer under way.

        Not so a live read: there a half-close cannot be distinguished from a disconnect.
        """
        self._body_received()  # a half-close may come with the last byte of a large body
        self._keep_alive = False
        under_way = self._exchange is not None and self._waiter is None
        return (under_way or not self.writable) and self._shared.scheme == "http"

    def check_deadline(self, now: float) -> None:
        """Called about once a second for every connection."""
        reader = self._reader
        if self._large is not None:
            self._large.note_unsent(self._transport.get_write_buffer_size())
        state = self._state
        if state is CLOSING or state is DISCARDING or not self.writable:
            # Whether a reader of an answer without a length is too slow is for its sender to say.
            if now >= self._deadline and state is not STREAMING:
                self._transport.abort()
            elif reader is not None:
                # The client cannot send while it is not read: its body is not late through its
                # fault.
                reader.excuse()
        elif self._exchange is not None:
            if reader is not None:
                reader.excuse()
            if self._waiter is not None and not self._transport.is_reading():
                self._check_departure()
            self._check_answer(self._exchange, now)
        elif reader is not None and (refusal := reader.overdue(now)) is not None:
            self._refuse(refusal)
        elif now >= self._deadline and not (reader is not None and reader.is_receiving):
            self.close()

    def _check_departure(self) -> None:
        """A live read that has more requests behind it is not read from."""
        if has_left(self._transport.get_extra_info("socket")):
            self.abort()

    def _check_answer(self, exchange: HttpExchange, now: float) -> None:
        """Nothing waits for ever, whatever became of its answer.

        An answer that has begun is judged by how the client takes it.
        """
        if self._state is STREAMING or self._large is not None:
            return
        limits = self._shared.writing
        waited_secs = limits.answer_secs
        if self._waiter is not None:
            waited_secs += limits.long_poll_secs
        if now - exchange.begun < waited_secs:
            return
        logger.error("a request had no answer after %.0f s", waited_secs)
        self._keep_alive = False
        # Taken before the answer, which clears it.
        waiter = self._waiter
        exchange.respond(responses.problem(AnswerTimeout(waited_secs)))
        if waiter is not None:
            waiter.on_disconnect()

    def close(self) -> None:
        if self._state is not CLOSING:
            self._state = CLOSING
            self._deadline = self._shared.response_head.deadline(self._patience_secs())
            self._transport.close()

    def _patience_secs(self) -> float:
        """How long a client may take for what it has not taken yet."""
        unsent_bytes = self._transport.get_write_buffer_size()
        if self._large is not None:
            unsent_bytes += self._large.rest_bytes
        if not unsent_bytes:
            return _LINGER_SECS
        return self._shared.writing.stalled_secs + unsent_bytes / BODY_BYTES_PER_SEC_MIN

    def is_lost(self) -> bool:
        """Whether what is written goes nowhere; `connection_lost` may be yet to come."""
        return self._state is CLOSING or self._transport.is_closing()

    def abort(self) -> None:
        self._state = CLOSING
        self._transport.abort()

    def fail(self, what: str) -> None:
        """While an exception is handled: what was answered and what was not is unknown."""
        logger.exception("%s failed; the connection is closed", what)
        self.abort()

    def drain(self) -> None:
        """Finish what is under way, tell live readers to reconnect, take nothing new."""
        self._keep_alive = False
        if self._waiter is not None:
            self._drain_waiter(self._waiter)
        elif self._exchange is None and not self._has_more():
            self.close()

    def _drain_waiter(self, waiter: Waiter) -> None:
        try:
            waiter.on_drain()
        except Exception:
            self.fail("the end of an answer")

    def _has_more(self) -> bool:
        reader = self._reader
        return reader is not None and (bool(reader.ready) or reader.is_receiving)

    def _drop_reader(self) -> None:
        if self._dismiss_receiver():
            self._transport.set_protocol(self)
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.release()

    # -- requests --------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None:
            return
        turns = self._shared.turns
        turns.read_count += 1
        is_looked_at = turns.is_watched or turns.read_count % READS_BETWEEN_LOOKS == 0
        if is_looked_at and turns.is_time_over():
            self._put_off(reader, data)
            return
        reader.feed(data)
        # While it runs or is in line, what was fed is seen by the code that does so.
        if not self._running and not self._in_line:
            if turns.is_waiting:
                turns.is_contended = True
            self._run(reader)

    def _put_off(self, reader: RequestReader, data: bytes) -> None:
        """Others have used up what time there is before the loop looks for events again."""
        reader.keep(data)
        self._transport.pause_reading()
        if not self._running:
            self._wait_for_turn()

    def _run(self, reader: RequestReader) -> None:
        """Run what is ready until something has to wait or the turn is over; see to the rest."""
        self._running = True
        try:
            self._run_ready(reader.ready)
            if reader.unread:
                self._read_on(reader)
        except Exception:
            self.fail("running a request")
        self._running = False
        if reader.ready or reader.unread or reader.needs_attention:
            self._hold_back_or_refuse(reader)

    def _read_on(self, reader: RequestReader) -> None:
        """Parse what came in a large read, and run it, while there is time for such reads."""
        turns = self._shared.turns
        now = monotonic()
        turn_ends = now + TURN_SECS
        while reader.unread and self._state is IDLE and not self._in_line:
            if now > turn_ends or turns.is_time_over():
                self._wait_for_turn()
                break
            reader.read_on()
            self._run_ready(reader.ready, turn_ends)
            now = monotonic()

    def _run_ready(self, ready: deque[Request], turn_ends: float = 0.0) -> None:
        shared = self._shared
        handle = shared.application.handle
        while ready and self._state is IDLE:
            request = ready.popleft()
            # The coarse clock: a request has a minute for its answer, and each would pay for a
            # finer one.
            exchange = self._exchange = HttpExchange(self, request, shared.response_head.now)
            self._state = BUSY
            self._keep_alive = request.keep_alive
            handle(request, exchange)
            # The handler has taken the body over, so that its room is free for the next upload.
            if request.reserved_bytes and not request.keeps_body:
                request.release_body()
            # Pipelined requests in memory mode are answered at once: without an end of the turn,
            # one client with thousands of them would hold the loop for seconds.
            if ready and self._state is IDLE:
                now = monotonic()
                turn_ends = turn_ends or now + TURN_SECS
                if now > turn_ends:
                    self._wait_for_turn()
                    return

    def take_turn(self) -> None:
        """Go on with a large answer, or with requests that came faster than they could be run."""
        self._in_line = False
        large = self._large
        if large is not None and large.rest_bytes:
            self._send_window(large)
            return
        reader = self._reader
        if reader is not None and self._state is not CLOSING and not self._running:
            self._transport.resume_reading()
            self._run(reader)

    def _hold_back_or_refuse(self, reader: RequestReader) -> None:
        """Hold back a client that is ahead of its answers; refuse what could not be read."""
        if self._state is CLOSING or self._reader is None:
            return
        body = reader.large_body
        if body is not None and not body.is_complete and self._receiver is None:
            self._receive(reader, body)
        # Requests that arrived are run before what follows them is read: memory for one client is
        # bounded by what one read brings.
        if reader.ready or reader.unread:
            self._transport.pause_reading()
        elif self._state is not IDLE:
            return
        elif reader.refusal is not None:
            self._refuse(reader.refusal)
        else:
            reader.needs_attention = False
            # Only now: a request before this one could still have been refused, or have closed.
            if reader.expects_continue:
                reader.expects_continue = False
                self._transport.write(CONTINUE)

    def _receive(self, reader: RequestReader, body: LargeBody) -> None:
        loop = asyncio.get_running_loop()

        def on_received(count: int) -> None:
            if not reader.add_to_body(count):
                self._stop_receiving()
                loop.call_soon(self._body_refused)
            elif body.is_complete:
                self._stop_receiving()
                # Later, as the transport still holds the memory it has filled. More of what the
                # client sends, or its end, may come before.
                loop.call_soon(self._body_received)

        self._receiver = BodyReceiver(self, body, on_received)
        self._transport.set_protocol(self._receiver)

    def _stop_receiving(self) -> None:
        self._dismiss_receiver()
        self._transport.set_protocol(self)

    def _body_refused(self) -> None:
        reader = self._reader
        if reader is not None:
            reader.drop_body()
            self._hold_back_or_refuse(reader)

    def _dismiss_receiver(self) -> bool:
        """Whether there was one."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.leave()
        return receiver is not None

    def _body_received(self) -> None:
        reader = self._reader
        if reader is None or reader.large_body is None:
            return
        reader.finish_body()
        if not self._running and not self._in_line:
            self._run(reader)

    def _answered(self) -> None:
        """The current request is answered: go on with the next, or close.

        While draining, a connection with further requests that have arrived still gets answers.
        """
        self._exchange = self._waiter = None
        shared = self._shared
        if not self._keep_alive or (shared.draining and not self._has_more()):
            self.close()
            return
        if self.writable:
            self._state = IDLE
            self._deadline = shared.response_head.deadline(shared.writing.keep_alive_secs)
        else:
            self._state = UNTAKEN  # its deadline was set with the answer, or by `pause_writing`
        if not self._running and self._reader is not None:
            self._transport.resume_reading()
            self._run(self._reader)

    def _refuse(self, refusal: HeadraceError) -> None:
        """Answer a request that could not be taken, and stop listening to this client."""
        reader = self._reader
        assert reader is not None, "only a connection that is read can be refused"
        request = reader.partial_request()
        response = responses.problem(refusal)
        self._keep_alive = False
        # Before anything is written: what is written may call back into `pause_writing`.
        self._state = DISCARDING
        self._drop_reader()
        self._write(response, request)
        self._observe(request, response)
        self._deadline = self._shared.response_head.deadline(_LINGER_SECS)
        # Half-closed, so that the client sees the end of the answer while its bytes are dropped.
        if self._transport.can_write_eof():
            self._transport.write_eof()

    # -- answers: called by the exchange of the current request ----------------------------

    def respond(self, request: Request, response: Response) -> None:
        if self._state is not BUSY:
            self._respond_late()
            return
        shared = self._shared
        if response.body or not self._keep_alive or shared.draining or request.method == b"HEAD":
            if len(response.body) > SMALL_ANSWER_BYTES and request.method != b"HEAD":
                if not shared.unsent.is_exceeded:
                    self._respond_large(response, request)
                    return
                response = responses.problem(shared.unsent.refusal())
            self._write(response, request)
        else:
            # Every append is answered here: not by a function of `answer_bytes`, to save the call.
            status = response.status
            head = shared.response_head.lines(status, request.headers) + response.headers
            self._transport.write(head + (END if status in WITHOUT_BODY else END_EMPTY))
        if shared.log_access or response.body:
            self._observe(request, response)
        else:
            shared.observe(request, response.status, 0)
        self._answered()

    def _respond_late(self) -> None:
        """The client has left, or another answer has begun, which must not look whole then."""
        if self._state is STREAMING:
            self.abort()

    def _write(self, response: Response, request: Request) -> None:
        shared = self._shared
        lines = shared.response_head.lines(response.status, request.headers)
        closes = not self._keep_alive or shared.draining
        to_head = request.method == b"HEAD"
        self._transport.write(whole_answer(lines, response, to_head=to_head, closes=closes))

    def _respond_large(self, response: Response, request: Request) -> None:
        """Answer in windows, as the client takes them; the request is under way until the last."""
        shared = self._shared
        lines = shared.response_head.lines(response.status, request.headers)
        closes = not self._keep_alive or shared.draining
        self._transport.write(head_with_length(lines, response, closes=closes))
        self._observe(request, response)
        self._forget_unsent()
        self._large = LargeAnswer(response.body, shared.unsent, self)
        self._deadline = shared.response_head.deadline(self._patience_secs())
        # Not now: one append answers all who wait for it in one turn of the loop.
        self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if not self._in_line:
            self._in_line = True
            self._shared.turns.add(self)

    def _send_window(self, large: LargeAnswer) -> None:
        """One in a turn: to copy an answer into the kernel takes milliseconds for each reader."""
        if self._state is CLOSING:
            return
        if self.writable:
            self._transport.write(large.window())
        if large.rest_bytes:
            if self.writable:
                self._wait_for_turn()
            return
        if self.writable:
            self._forget_unsent()
        self._answered()

    def on_cut(self) -> None:
        """Others wait for room, and this client has taken too little for too long."""
        self.abort()

    def _observe(self, request: Request, response: Response) -> None:
        shared = self._shared
        sent_bytes = 0 if request.method == b"HEAD" else len(response.body)
        elapsed_secs = shared.observe(request, response.status, sent_bytes)
        if shared.log_access:
            log_access(request, response.status, sent_bytes, elapsed_secs)

    def start(self, request: Request, response: Response) -> None:
        if self._state is CLOSING:
            return
        self._state = STREAMING
        self._keep_alive = False
        lines = self._shared.response_head.lines(response.status, request.headers)
        self._transport.write(head_without_length(lines, response, is_chunked=request.http_11))
        self._observe(request, response)
        # Not for other answers: a small buffer would slow down every catch-up read over a distance.
        self._bound_send_buffers()
        # Nothing a client sends after this is read as a request, so what reads it can go.
        self._drop_reader()
        request.headers = {}
        # It was held back if more came behind the request: its end would never be heard.
        self._transport.resume_reading()

    def _bound_send_buffers(self) -> None:
        """A reader that never reads must cost little: bound what the kernel and we hold."""
        limits = self._shared.writing
        self._transport.set_write_buffer_limits(high=limits.live_queue_bytes)
        sock: socket.socket | None = self._transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.live_send_buffer_bytes)

    def send(self, request: Request, frame: Frame) -> None:
        if self._state is CLOSING:
            return
        data = frame.chunked if request.http_11 else frame.raw
        self._shared.application.metrics.sent_event_bytes += len(data)
        self._transport.write(data)

    def end(self, request: Request) -> None:
        if self._state is CLOSING:
            return
        if not self.writable:
            # The client reads nothing, so it would not read the last chunk either.
            self.abort()
            return
        if request.http_11:
            self._transport.write(LAST_CHUNK)
        self._answered()

    def hold(self, waiter: Waiter) -> None:
        if self._state is CLOSING:
            waiter.on_disconnect()
        else:
            self._waiter = waiter

    def pause_writing(self) -> None:
        self.writable = False
        # Its sender asks `writable` before each frame, and has a deadline of its own.
        if self._state is STREAMING:
            return
        if self._state is IDLE:
            self._state = UNTAKEN
        if self._large is not None:  # it is counted whole, and has its deadline
            self._transport.pause_reading()
            return
        shared = self._shared
        # Counted with what waits for all clients; a client that takes nothing may cost the place of
        # another, so it is not read from until it has taken this.
        self._unsent_bytes = self._transport.get_write_buffer_size()
        shared.unsent.add(self._unsent_bytes)
        self._deadline = shared.response_head.deadline(self._patience_secs())
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.writable = True
        try:
            self._send_more()
        except Exception:
            self.fail("an answer under way")

    def _send_more(self) -> None:
        large = self._large
        if large is not None and large.rest_bytes:
            if self._shared.turns.is_waiting:
                self._wait_for_turn()
            else:
                self._send_window(large)
            return
        self._forget_unsent()
        if self._waiter is not None:
            self._waiter.on_writable()
        elif self._state is UNTAKEN and self._reader is not None:
            shared = self._shared
            self._state = IDLE
            self._deadline = shared.response_head.deadline(shared.writing.keep_alive_secs)
            self._transport.resume_reading()
            self._run(self._reader)

    def _forget_unsent(self) -> None:
        """The transport's buffer is empty, or will never be sent."""
        if self._unsent_bytes:
            self._shared.unsent.remove(self._unsent_bytes)
            self._unsent_bytes = 0
        large, self._large = self._large, None
        if large is not None:
            large.release()
