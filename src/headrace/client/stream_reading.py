"""Reading a stream as one state machine: catch up, then follow by long-poll or SSE.

It keeps the position (`offset`), echoes the server's cursor, resumes after failures, and knows
when nothing more can come. It yields chunks; `client.chunk_views` makes text, JSON and events of
them. Nothing here does input or output; see `client.effects`.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from dataclasses import dataclass
from typing import Literal, NoReturn

import msgspec

from headrace.client.effects import Answer, Emit, Flow, HangUp, Open, Pull, Request, Steps, Wait
from headrace.client.errors import BadAnswer, ConnectionLost, UnexpectedAnswer, failure
from headrace.client.requests import NO_CONTENT, OK, Target, ask, may_repeat, pause, retry_of
from headrace.errors import HeadraceError, InvalidRequest
from headrace.protocol import framed
from headrace.protocol.headers import is_json
from headrace.protocol.json_mode import response_body
from headrace.protocol.offsets import BEGINNING
from headrace.protocol.sse import EventDecoder


class _Control(msgspec.Struct):
    """The fields of a control event."""

    streamNextOffset: str  # noqa: N815  the wire's own names
    streamCursor: str | None = None  # noqa: N815
    upToDate: bool = False  # noqa: N815
    streamClosed: bool = False  # noqa: N815


_control = msgspec.json.Decoder(_Control)

Live = Literal[False, "auto", "long-poll", "sse"]

_SILENT_STREAMS_MAX = 3  # event streams in a row without an event: something in between buffers
_HASTY_SECS = 0.05  # an empty long-poll that ends sooner is not the server waiting


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one answer, or one event of a live one, brought.

    `data` may be empty: then the chunk says that the reader has caught up or that the stream is
    closed. `offset` is where it begins and `next_offset` where to go on.
    """

    data: bytes
    offset: str
    next_offset: str
    up_to_date: bool
    closed: bool
    content_type: str | None
    """None in an event stream, which does not say."""
    frame: framed.Frame | None = None
    """Where each message ends, if it was asked for and the server says it."""


class Reading:
    """One reader's place in one stream."""

    def __init__(
        self, target: Target, offset: str = BEGINNING, live: Live = False, *, skip: int = 0
    ) -> None:
        if live not in (False, "auto", "long-poll", "sse"):
            raise ValueError("live is False, 'auto', 'long-poll' or 'sse'.")
        self._target = target
        self._live = live
        self.skip = skip
        self.framed = False
        """Whether to ask where each message ends; no longer, once the server does not tell."""
        self.offset = offset
        self.cursor: str | None = None
        self.up_to_date = False
        self.closed = False
        self.content_type: str | None = None
        self.status: int | None = None
        self._opened = 0
        self._controls = 0

    @property
    def url(self) -> str:
        return self._target.url

    @property
    def is_live(self) -> bool:
        return self._live is not False

    def flow(self) -> Flow[Chunk]:
        """Everything from the offset on; ends when caught up, or if live, when closed."""
        # An event stream says neither the content type nor where each message ends, so a reader
        # of messages begins with what does.
        if self._live != "sse" or self.framed:
            yield from self._catch_up()
        if self._by_events and not self.closed:
            yield from self._follow_events(fall_back=self._live == "auto")
        if self._live and not self.closed:
            yield from self._follow_polls()

    @property
    def _by_events(self) -> bool:
        """Whether to follow by SSE. It cannot carry every text (a carriage return is lost), so a
        reader that leaves the choice to us gets text by long-poll, which is exact."""
        is_text = (self.content_type or "").lower().startswith("text/")
        return self._live == "sse" or (self._live == "auto" and not is_text)

    # -- plain and long-poll requests -----------------------------------------------------------

    def _request(self, **params: str) -> Request:
        live = "live" in params
        if live and self.cursor is not None:
            params["cursor"] = self.cursor
        timeouts = self._target.settings.timeouts
        return self._target.request(
            "GET",
            params={"offset": self.offset, **params},
            timeout_secs=timeouts.live_secs if live else timeouts.answer_secs,
        )

    def _catch_up(self) -> Flow[Chunk]:
        while True:
            before = self.offset
            chunk = self._taken((yield from self._range()))
            yield Emit(chunk)
            # A server that says neither that this is the end nor that it is closed would be asked
            # for ever.
            stands_still = not chunk.data and self.offset == before
            if self.up_to_date or self.closed or stands_still:
                return

    def _range(self) -> Steps[Answer]:
        """What follows the offset, framed where the server can; others ignore or refuse that."""
        if self.framed:
            try:
                return (yield from ask(self._target, self._request(format="framed"), (OK,)))
            except (InvalidRequest, UnexpectedAnswer):
                self.framed = False
        return (yield from ask(self._target, self._request(), (OK,)))

    def _follow_polls(self) -> Flow[Chunk]:
        hasty = 0
        while not self.closed:
            request = self._request(live="long-poll")
            answer = yield from ask(self._target, request, (OK, NO_CONTENT))
            chunk = self._taken(answer)
            if chunk.data or chunk.closed:
                yield Emit(chunk)
            # A proxy that answers at once, from a cache say, would be asked as fast as it can
            # answer.
            hasty = 0 if chunk.data or answer.took_secs > _HASTY_SECS else hasty + 1
            if hasty:
                yield Wait(self._target.settings.retry.delay_secs(hasty, 0.0))

    def _taken(self, answer: Answer) -> Chunk:
        """Move on by one answer."""
        self.status = answer.status
        body = answer.body if answer.status == OK else b""
        next_offset = answer.headers.get("stream-next-offset")
        if next_offset is None:
            if body:
                self._misunderstood("Stream-Next-Offset is missing")
            next_offset = self.offset
        self.cursor = answer.headers.get("stream-cursor", self.cursor)
        frame = self._frame(answer) if self.framed else None
        said = "content-type" if frame is None else "stream-content-type"
        self.content_type = answer.headers.get(said, self.content_type)
        if frame is not None:
            body = bytes(frame.data)
            body = response_body(body) if body and is_json(self.content_type or "") else body
        closed = answer.flag("stream-closed")
        return self._moved(body, next_offset, answer.flag("stream-up-to-date"), closed, frame)

    def _frame(self, answer: Answer) -> framed.Frame | None:
        if answer.headers.get("content-type") != framed.MEDIA_TYPE:
            return None
        try:
            return framed.decode(answer.body)
        except ValueError as error:
            self._misunderstood(str(error))

    def _moved(
        self,
        data: bytes,
        next_offset: str,
        up_to_date: bool,
        closed: bool,
        frame: framed.Frame | None = None,
    ) -> Chunk:
        chunk = Chunk(data, self.offset, next_offset, up_to_date, closed, self.content_type, frame)
        self.offset = next_offset
        self.up_to_date = up_to_date
        self.closed = closed
        return chunk

    # -- event streams --------------------------------------------------------------------------

    def _follow_events(self, *, fall_back: bool) -> Flow[Chunk]:
        """Until the stream is closed; with `fall_back`, also until SSE proves of no use here."""
        settings = self._target.settings
        failures = silent = 0
        while not self.closed:
            opened, controls, before = self._opened, self._controls, self.offset
            problem: HeadraceError = ConnectionLost(self._target.url, "no event came")
            try:
                yield from self._listen()
            except HeadraceError as error:
                problem = error
                if fall_back and isinstance(error, (BadAnswer, InvalidRequest, UnexpectedAnswer)):
                    yield HangUp()
                    return
                if not may_repeat(error, self._request()):
                    raise
            # Servers end event streams on purpose, to balance them or to drain: one that brought
            # anything is not a failure, and the next follows at once.
            heard = self._controls > controls
            silent = silent + 1 if self._opened > opened and not heard else 0
            failures = 0 if heard else failures + 1
            if fall_back and silent >= _SILENT_STREAMS_MAX:
                yield HangUp()
                return
            if not retry_of(settings, problem).allows(failures):
                raise problem
            if self.offset == before and not self.closed:
                yield pause(settings, max(failures, 1), problem)

    def _listen(self) -> Flow[Chunk]:
        """One event stream, from the offset until it ends."""
        request = self._request(live="sse")
        answer: Answer = yield Open(request)
        if answer.status != OK:
            raise failure(request, answer)
        self.status = answer.status
        if "text/event-stream" not in answer.headers.get("content-type", ""):
            self._misunderstood("the response is not an event stream")
        self._opened += 1
        encoded = answer.headers.get("stream-sse-data-encoding", "").lower() == "base64"
        decoder = EventDecoder()
        payloads: list[bytes] = []
        # Bytes without their control event are dropped with the connection: only the control
        # event says where they end, so the next connection brings them again.
        while (received := (yield Pull())) is not None:
            for event in decoder.feed(received):
                if event.type == "data":
                    payloads.append(self._payload(event.data, encoded))
                elif event.type == "control":
                    chunks, payloads = self._completed(payloads, event.data), []
                    for chunk in chunks:
                        yield Emit(chunk)
                    if self.closed:
                        return

    def _payload(self, text: str, encoded: bool) -> bytes:
        if not encoded:
            return text.encode("utf-8")
        try:
            return b64decode("".join(text.split()), validate=True)
        except NotBase64:
            self._misunderstood("a data event is not valid base64")

    def _completed(self, payloads: list[bytes], text: str) -> list[Chunk]:
        """The chunks that a control event completes; all but the last cannot be resumed after."""
        try:
            control = _control.decode(text)
        except (msgspec.MsgspecError, ValueError):
            self._misunderstood(f"an invalid control event: {text[:100]!r}")
        self._controls += 1
        self.cursor = control.streamCursor or self.cursor
        earlier = [self._moved(data, self.offset, False, False) for data in payloads[:-1]]
        last = payloads[-1] if payloads else b""
        up_to_date = control.upToDate or control.streamClosed
        return [
            *earlier,
            self._moved(last, control.streamNextOffset, up_to_date, control.streamClosed),
        ]

    def _misunderstood(self, reason: str) -> NoReturn:
        raise BadAnswer(self._target.url, reason)
