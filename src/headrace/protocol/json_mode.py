"""JSON mode: what one body means as messages.

A body that is an array holds one message per element (one level only); anything else is one
message. Messages keep the text they were sent with: they are validated, never re-serialised.
On the log each message is followed by a comma, so that `[`, a range without its last byte, and
`]` is the response to a read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import orjson

from headrace.errors import BodyTooLarge, InvalidJson
from headrace.limits import JSON_DEPTH_MAX

_WHITESPACE: Final = b" \t\n\r"
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},]')
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])


def split_messages(body: bytes, bytes_max: int) -> list[bytes]:
    """The messages of `body`, in order; an empty array gives none."""
    if len(body) > bytes_max:
        raise BodyTooLarge(bytes_max)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidJson(_explain(error)) from None
    if type(value) is not list:
        return [body.strip(_WHITESPACE)]
    if not value:
        return []
    try:
        return [bytes(element) for element in _ELEMENTS.decode(body)]
    except RecursionError:
        return _split_deep(body)


def _split_deep(body: bytes) -> list[bytes]:
    """The same for a valid array that nests deeper than the decoder goes."""
    elements: list[bytes] = []
    depth = begin = 0
    for token in _TOKENS.finditer(body):
        mark = body[token.start()]
        if mark in b"]}":
            depth -= 1
        if (depth == 1 and mark == ord(",")) or depth == 0:
            if begin:
                elements.append(body[begin : token.start()].strip(_WHITESPACE))
            begin = token.end()
        if mark in b"[{":
            depth += 1
    return elements


_TOO_DEEP = f"The body nests deeper than {JSON_DEPTH_MAX} levels."


def _explain(error: orjson.JSONDecodeError) -> str:
    if "ecursion" in error.msg or "depth" in error.msg:
        return _TOO_DEEP
    return f"The body is not valid JSON: {error.msg} at character {error.pos}."


def wire_bytes(messages: Sequence[bytes]) -> bytes:
    """Messages as they stand on the log."""
    return b",".join(messages) + b","


def response_body(data: bytes) -> bytes:
    """A range of the log as a reader receives it."""
    return b"[%b]" % data[:-1]
