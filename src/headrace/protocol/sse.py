"""Server-Sent Events: how a range of a stream is framed, and how a frame is read back.

Every `data` event is followed by its `control` event. Events carry no `id:`; the offset to resume
from is in the control event. Text travels as UTF-8, everything else as base64. SSE knows only
LF as a line end inside a payload, so CR and CRLF arrive as LF; bytes that are not UTF-8 arrive as
U+FFFD.
"""

from __future__ import annotations

import codecs
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import NamedTuple

from headrace.protocol.json_mode import response_body
from headrace.protocol.offsets import Position
from headrace.protocol.stream import StreamState

BOM = codecs.BOM_UTF8
_BEGIN = b"event: data\ndata:"
_END = b"\n\n"
_LINE_END = re.compile(rb"\r\n|\r|\n")


def data_event(payload: bytes) -> bytes:
    """One `data` event; `payload` is UTF-8 or base64."""
    return _BEGIN + _lines(payload, at_line_start=True) + _END


def data_event_part(payload: bytes, at: int, size: int) -> tuple[bytes, int]:
    """A part of the `data` event of `payload`, from `at` on, and where the next one begins.

    About `size` bytes of the payload, fewer where they are mostly line ends: each becomes six.
    """
    end = min(at + size, len(payload))
    if payload.count(b"\n", at, end) + payload.count(b"\r", at, end) > size // 32:
        end = min(at + size // 4, len(payload))
    if payload[end - 1 : end + 1] == b"\r\n":
        end += 1
    before = payload[at - 1 : at] if at else b"\n"
    encoded = _lines(payload[at:end], at_line_start=before in (b"\n", b"\r"))
    begin = b"" if at else _BEGIN
    return begin + encoded + (_END if end == len(payload) else b""), end


def _lines(text: bytes, *, at_line_start: bool) -> bytes:
    """Behind each line end another `data:`. Replaced, not split: it may be millions of lines.

    Receivers drop one space after the colon, so a line that begins with one gets another.
    """
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if at_line_start and text.startswith(b" "):
        text = b" " + text
    if b"\n" in text:
        text = text.replace(b"\n ", b"\n  ").replace(b"\n", b"\ndata:")
    return text


def control_event(
    next_offset: Position, *, cursor: int | None, up_to_date: bool, closed: bool
) -> bytes:
    fields = b'{"streamNextOffset":"%016d_%016d"' % next_offset
    if closed:
        fields += b',"upToDate":true,"streamClosed":true'
    else:
        fields += b',"streamCursor":"%d"' % (cursor or 0)
        if up_to_date:
            fields += b',"upToDate":true'
    return b"event: control\ndata:%b}\n\n" % fields


def payload_of(state: StreamState, data: bytes) -> bytes:
    """A range of the log as the payload of a data event."""
    if state.is_json:
        return response_body(data)
    if not state.is_text:
        return b64encode(data)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace").encode("utf-8")
    return data


def ends_inside_character(data: bytes) -> bool:
    """Whether `data` stops after the first bytes of a longer UTF-8 sequence."""
    for back in range(1, min(3, len(data)) + 1):
        if data[-back] < 0x80:
            return False
        if data[-back] >= 0xC0:
            try:
                return codecs.utf_8_decode(data[-back:], "strict", False)[1] == 0
            except UnicodeDecodeError:
                return False
    return False


class ReceivedEvent(NamedTuple):
    """One event as a receiver sees it; `type` is `message` where the sender named none."""

    type: str
    data: str


class EventDecoder:
    """An event stream parser by the rules of the HTML standard, fed any slices of bytes."""

    def __init__(self) -> None:
        self._buffer = b""
        self._type = ""
        self._data: list[str] = []
        self._begun = False

    def feed(self, received: bytes) -> Iterator[ReceivedEvent]:
        self._buffer += received
        if not self._begun:
            if len(self._buffer) < len(BOM) and BOM.startswith(self._buffer):
                return
            self._begun = True
            self._buffer = self._buffer.removeprefix(BOM)
        # A CR at the very end may be half of a CRLF.
        complete = self._buffer[:-1] if self._buffer.endswith(b"\r") else self._buffer
        last = max(complete.rfind(b"\n"), complete.rfind(b"\r")) + 1
        lines = _LINE_END.split(self._buffer[:last])[:-1]
        self._buffer = self._buffer[last:]
        for line in lines:
            event = self._line(line.decode("utf-8", "replace"))
            if event is not None:
                yield event

    def _line(self, line: str) -> ReceivedEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._type = value
        return None

    def _dispatch(self) -> ReceivedEvent | None:
        data, self._data = self._data, []
        type_, self._type = self._type, ""
        return ReceivedEvent(type_ or "message", "\n".join(data)) if data else None
