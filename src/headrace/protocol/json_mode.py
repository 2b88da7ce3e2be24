"""JSON mode: what one body means as messages.

A body that is an array holds one message per element (one level only); anything else is one
message. Messages keep the text they were sent with: they are validated, never re-serialised.
On the log each message is followed by a comma, so that `[`, a range without its last byte, and
`]` is the response to a read.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from headrace.errors import BodyTooLarge, InvalidJson, TooManyMessages
from headrace.limits import JSON_DEPTH_MAX
from headrace.protocol.json_structure import TOO_DEEP, Structure, may_exceed_doubles

_WHITESPACE: Final = b" \t\n\r"
# From here on a body is worth looking at twice before a value is made of everything in it.
SCANNED_BYTES_MIN = 4096
# From here on no values are made at all: 1 MiB of small ones is 15 ms and 40 MB, 16 MiB 0.8 GB.
LARGE_BYTES_MIN = 1024 * 1024
MESSAGES_UNLIMITED: Final = 2**62
# Opening and closing take two bytes a level: what is shorter cannot nest too deep.
_SHALLOW_BYTES_MAX: Final = 2 * JSON_DEPTH_MAX
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_ANYTHING = msgspec.json.Decoder(msgspec.Raw)


class Logged(NamedTuple):
    """The messages of one body as they are stored in the log, and the length of each there."""

    data: bytes
    lengths: tuple[int, ...]


def log_form(body: bytes, bytes_max: int, messages_max: int = MESSAGES_UNLIMITED) -> Logged:
    """The messages of `body`; an empty array gives none."""
    if len(body) > bytes_max:
        raise BodyTooLarge(bytes_max)
    if len(body) >= LARGE_BYTES_MIN:
        steps = log_form_steps(body, bytes_max, messages_max)
        while True:
            try:
                next(steps)
            except StopIteration as finished:
                found: Logged = finished.value
                return found
    logged = _scanned(body) if len(body) >= SCANNED_BYTES_MIN else None
    if logged is None:
        logged = _logged(split_messages(body, bytes_max))
    if len(logged.lengths) > messages_max:
        raise TooManyMessages(messages_max)
    return logged


def log_form_steps(body: bytes, bytes_max: int, messages_max: int) -> Generator[None, None, Logged]:
    """The same for a large body, in steps between which others can have their turn.

    The longest is the decoder's: 60 ms for the worst 16 MiB, and in memory a copy of the body and
    what `messages_max` elements take.
    """
    if len(body) > bytes_max:
        raise BodyTooLarge(bytes_max)
    yield from Structure(body, messages_max).steps()
    is_array = body.lstrip(_WHITESPACE)[:1] == b"["
    try:
        found = _decode(_ELEMENTS if is_array else _ANYTHING, body)
    except msgspec.DecodeError as error:
        raise InvalidJson(f"The body is not valid JSON: {error}.") from None
    yield
    if not is_array:
        return _logged([body.strip(_WHITESPACE)])
    return _in_place(body, found)


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Some versions of Python end a decoder's recursion earlier than we do."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 2 * JSON_DEPTH_MAX)
    try:
        return decoder.decode(body)
    finally:
        sys.setrecursionlimit(limit)


def _scanned(body: bytes) -> Logged | None:
    """The texts of an array's elements; none is decoded.

    None where it takes a closer look to tell whether this is valid. The decoder leaves three
    things unseen: whether text is UTF-8, how deep an element nests, and whether a number fits a
    double.
    """
    try:
        elements = _ELEMENTS.decode(body)
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    longest = max(map(len, elements), default=0)
    if not elements or longest >= _SHALLOW_BYTES_MAX or may_exceed_doubles(body):
        return None
    return _in_place(body, elements)


def _in_place(body: bytes, elements: Sequence[msgspec.Raw]) -> Logged:
    lengths = tuple([len(element) + 1 for element in elements])
    if sum(lengths) + 1 == len(body):  # with nothing but commas between them
        return Logged(b"".join((memoryview(body)[1:-1], b",")), lengths)
    return _logged([bytes(element) for element in elements])


def _logged(messages: Sequence[bytes]) -> Logged:
    if not messages:
        return Logged(b"", ())
    return Logged(wire_bytes(messages), tuple([len(message) + 1 for message in messages]))


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
    return [bytes(element) for element in _decode(_ELEMENTS, body)] if value else []


def _explain(error: orjson.JSONDecodeError) -> str:
    if "ecursion" in error.msg or "depth" in error.msg:
        return TOO_DEEP
    return f"The body is not valid JSON: {error.msg} at character {error.pos}."


def wire_bytes(messages: Sequence[bytes]) -> bytes:
    """Messages as they are stored in the log."""
    return b",".join(messages) + b","


def response_body(data: bytes) -> bytes:
    """A range of the log as a reader receives it."""
    return b"[%b]" % data[:-1]
