"""Requests like the one before: found by comparing bytes, without parsing them again.

A writer sends the same head over and over; only the values of Producer-Seq and Content-Length
move on. A `HeadPattern` is made from a request that was parsed and checked in full. Whatever
matches it is that head byte for byte, but for the digits of those two fields, so every check of
the parser and the reader holds for it too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.clock import monotonic
from headrace.http.exchange import Kin, Request
from headrace.protocol.headers import Headers

_HEAD_BYTES_MAX: Final = 2048  # what a pattern may cost an idle connection
_DIGITS_MAX: Final = 16
_LENGTH: Final = b"content-length"
_SEQ: Final = b"producer-seq"


class _Gap(NamedTuple):
    """Where the digits of a field stand."""

    start: int
    end: int
    name: bytes


class HeadPattern:
    __slots__ = (
        "_after",
        "_before",
        "_between",
        "_body_bytes_max",
        "_client",
        "_first",
        "_headers",
        "_kin",
        "_method",
        "_second",
        "_target",
    )

    def __init__(self, head: bytes, model: Request, gaps: list[_Gap], body_bytes_max: int) -> None:
        first, last = gaps[0], gaps[-1]
        self._before = head[: first.start]
        self._between = b"" if last is first else head[first.end : last.start]
        self._after = head[last.end :]
        self._first = first.name
        self._second = None if last is first else last.name
        self._method = model.method
        self._target = model.target
        self._headers = model.headers
        self._client = model.client
        self._body_bytes_max = body_bytes_max
        self._kin = model.kin = Kin()

    def match(self, data: bytes) -> Request | None:
        """The request that `data` is, if it is one like this, whole and with nothing behind it."""
        before = self._before
        if not data.startswith(before):
            return None
        start = len(before)
        end = data.find(b"\r", start, start + _DIGITS_MAX + 1)
        if end < 0 or not (value := data[start:end]).isdigit():
            return None
        headers: Headers = self._headers.copy()
        headers[self._first] = value
        second = self._second
        if second is not None:
            between = self._between
            if not data.startswith(between, end):
                return None
            start = end + len(between)
            end = data.find(b"\r", start, start + _DIGITS_MAX + 1)
            if end < 0 or not (value := data[start:end]).isdigit():
                return None
            headers[second] = value
        after = self._after
        if not data.startswith(after, end):
            return None
        body = data[end + len(after) :]
        size = len(body)
        if int(headers[_LENGTH]) != size or not 0 < size <= self._body_bytes_max:
            return None
        request = Request(self._method, self._target, headers, body, self._client, monotonic())
        request.kin = self._kin
        return request


def pattern_of(data: bytes, model: Request, body_bytes_max: int) -> HeadPattern | None:
    """A pattern for requests like `model`, which came as `data`, if they carry a length."""
    head = data[: data.find(b"\r\n\r\n") + 4]
    length = _gap(head, model.headers, _LENGTH)
    if length is None or len(head) > _HEAD_BYTES_MAX:
        return None
    seq = _gap(head, model.headers, _SEQ)
    gaps = [length] if seq is None else sorted((length, seq))
    return HeadPattern(head, model, gaps, body_bytes_max)


def _gap(head: bytes, headers: Headers, name: bytes) -> _Gap | None:
    """Where the digits of `name` stand, if they are all that stands in one line of that name."""
    value = headers.get(name)
    if value is None or not value.isdigit():
        return None
    line = b"\r\n%b: %b\r\n" % (name, value)
    start = head.lower().find(line)
    if start < 0:
        return None
    end = start + len(line) - 2
    return _Gap(end - len(value), end, name)
