"""Appends like the one before: found by comparing bytes, without parsing them again.

A writer sends the same head over and over; only the values of Producer-Seq and Content-Length
move on, and the stream, if it writes to several. What is remembered comes from a request that was
parsed and checked in full. Whatever matches it is that head byte for byte, but for the digits of
those two fields and a target of plain characters, so every check of the parser and the reader
holds for it too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.clock import monotonic
from headrace.http.exchange import ParsedHead, Request
from headrace.protocol.headers import Headers

_HEAD_BYTES_MAX: Final = 2048  # what the memory of a head may cost an idle connection
_DIGITS_MAX: Final = 16
_ATTEMPTS: Final = 16  # heads remembered in vain, one after another, before a client is left alone
_METHOD: Final = b"POST "
# What a parser cannot take for anything but part of a path, and a router not for a query.
_PLAIN: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/-._~%!$&'()*+,;=:@"
_LENGTH: Final = b"content-length"
_SEQ: Final = b"producer-seq"


class _Gap(NamedTuple):
    """The position of a field's digits in a head."""

    start: int
    end: int
    name: bytes


class HeadCache:
    """The last append of a connection that was parsed, and what is like it."""

    __slots__ = (
        "_after",
        "_attempts",
        "_before",
        "_behind_target",
        "_between",
        "_body_bytes_max",
        "_first",
        "_first_digits",
        "_model",
        "_second",
        "_second_digits",
        "_target_end_max",
    )

    def __init__(self, body_bytes_max: int, url_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._target_end_max = len(_METHOD) + min(url_bytes_max, _HEAD_BYTES_MAX)
        self._attempts = _ATTEMPTS
        self._model: Request | None = None
        # The head in pieces, the fields whose digits lie between them, and how many digits
        # they had. Without a second field the head ends with `_between`.
        self._before = self._behind_target = self._between = self._after = b""
        self._first = _LENGTH
        self._second: bytes | None = None
        self._first_digits = self._second_digits = 0

    def match(self, data: bytes) -> Request | None:
        """The append that `data` is, if it is like the last, whole and with nothing behind it."""
        model, before, between = self._model, self._before, self._between
        if model is None:
            return None
        target, start = model.target, len(before)
        if data[:start] != before:
            end = self._target_end(data)
            if not end:
                return None
            target, start = data[len(_METHOD) : end], end + len(self._behind_target)
        count = _count_digits(data, start, self._first_digits, between)
        if not count:
            return None
        self._first_digits = count
        end = start + count
        first, second, headers = data[start:end], self._second, model.headers
        end += len(between)
        if second is not None:
            after = self._after
            count = _count_digits(data, end, self._second_digits, after)
            if not count:
                return None
            self._second_digits = count
            headers = headers.copy()
            headers[self._first], headers[second] = first, data[end : end + count]
            end += count + len(after)
        elif headers[_LENGTH] != first:
            headers = headers.copy()
            headers[_LENGTH] = first
        body = data[end:]
        size = len(body)
        if int(headers[_LENGTH]) != size or not 0 < size <= self._body_bytes_max:
            return None
        self._attempts = _ATTEMPTS
        return Request(
            model.method, target, headers, body, model.client, monotonic(), model.parsed_head
        )

    def _target_end(self, data: bytes) -> int:
        """Where another target ends, if that is all that tells the head from the last; or 0."""
        begin, behind = len(_METHOD), self._behind_target
        end = data.find(b" ", begin, self._target_end_max + 1)
        if end <= begin or data[end : end + len(behind)] != behind:
            return 0
        if data[: begin + 1] != b"POST /" or data[begin:end].translate(None, _PLAIN):
            return 0
        return end

    def learn(self, data: bytes, request: Request) -> None:
        """`data` was parsed, and was nothing but `request`: expect more like it."""
        self._model = None
        if self._attempts == 0 or not request.keep_alive:
            return
        self._attempts -= 1
        head = data[: data.find(b"\r\n\r\n") + 4]
        length = _gap(head, request.headers, _LENGTH)
        if length is None or len(head) > _HEAD_BYTES_MAX:
            return
        # The parser is lenient: it takes two spaces before a target, for example. Only what is
        # in the one canonical form can be cut at its spaces and compared piece by piece.
        first_line = _METHOD + request.target + b" HTTP/1.1\r\n"
        if not head.startswith(first_line) or len(head) + len(request.body) != len(data):
            return
        seq = _gap(head, request.headers, _SEQ)
        first = length if seq is None else min(length, seq)
        last = length if seq is None else max(length, seq)
        self._before, self._after = head[: first.start], head[last.end :]
        self._behind_target = head[head.find(b" ", len(_METHOD)) : first.start]
        self._between = self._after if seq is None else head[first.end : last.start]
        self._first, self._second = first.name, None if seq is None else last.name
        self._first_digits, self._second_digits = first.end - first.start, last.end - last.start
        parsed_head = request.parsed_head = ParsedHead()
        self._model = Request(
            request.method, request.target, request.headers, b"", request.client, 0.0, parsed_head
        )


def _count_digits(data: bytes, start: int, expected: int, following: bytes) -> int:
    """The number of digits at `start` (probably `expected`), or 0 if `following` does not follow.

    `following` begins with the end of a line, so there is only one such number.
    """
    end = start + expected
    if data[end : end + len(following)] != following:
        end = data.find(b"\r", start, start + _DIGITS_MAX + 1)
        if end <= start or data[end : end + len(following)] != following:
            return 0
    return end - start if data[start:end].isdigit() else 0


def _gap(head: bytes, headers: Headers, name: bytes) -> _Gap | None:
    """Where the digits of `name` are, if they are the whole value of the only such field."""
    value = headers.get(name)
    if value is None or not value.isdigit():
        return None
    line = b"\r\n%b: %b\r\n" % (name, value)
    start = head.lower().find(line)
    if start < 0:
        return None
    end = start + len(line) - 2
    return _Gap(end - len(value), end, name)
