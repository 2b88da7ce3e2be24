"""JSON mode: what one body means as messages.

A body that is an array holds one message per element (one level only); anything else is one
message. Messages keep the text they were sent with: they are validated, never re-serialised.
On the log each message is followed by a comma, so that `[`, a range without its last byte, and
`]` is the response to a read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import orjson

from headrace.errors import BodyTooLarge, InvalidJson
from headrace.limits import JSON_DEPTH_MAX

_WHITESPACE: Final = b" \t\n\r"
# From here on a body is worth looking at twice before a value is made of everything in it.
SCANNED_BYTES_MIN = 4096
# Opening and closing take two bytes a level: what is shorter cannot nest too deep.
_SHALLOW_BYTES_MAX: Final = 2 * JSON_DEPTH_MAX
# A double ends at 1e308: what is larger has an exponent of three digits, or this many before it.
_MANY_DIGITS: Final = b"0" * 200
_EXPONENT = re.compile(rb"0e0000*[],}\s]")  # as a number ends: in a hash or an id more follows
_DIGITS_ALIKE: Final = bytes.maketrans(b"123456789E+", b"000000000e0")
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},]')
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])


class Logged(NamedTuple):
    """The messages of one body as they stand on the log, and the length of each there."""

    data: bytes
    lengths: tuple[int, ...]


def log_form(body: bytes, bytes_max: int) -> Logged:
    """The messages of `body`; an empty array gives none."""
    if SCANNED_BYTES_MIN <= len(body) <= bytes_max:
        found = _scanned(body)
        if found is not None:
            return found
    messages = split_messages(body, bytes_max)
    if not messages:
        return Logged(b"", ())
    return Logged(wire_bytes(messages), tuple([len(message) + 1 for message in messages]))


def _scanned(body: bytes) -> Logged | None:
    """The elements of an array, as they stand in it, without a value made of any.

    None where it takes a closer look to tell whether this is valid. The decoder leaves three
    things unseen: whether text is UTF-8, how deep an element nests, and whether a number fits a
    double.
    """
    try:
        elements = _ELEMENTS.decode(body)
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    lengths = tuple([len(element) + 1 for element in elements])
    if not lengths or max(lengths) > _SHALLOW_BYTES_MAX or _may_exceed_doubles(body):
        return None
    if sum(lengths) + 1 == len(body):  # with nothing but commas between them
        return Logged(b"".join((memoryview(body)[1:-1], b",")), lengths)
    return Logged(wire_bytes([bytes(element) for element in elements]), lengths)


def _may_exceed_doubles(body: bytes) -> bool:
    alike = body.translate(_DIGITS_ALIKE)
    return _MANY_DIGITS in alike or _EXPONENT.search(alike) is not None


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
