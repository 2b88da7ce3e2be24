"""JSON mode: what one body means as messages.

A body that is an array holds one message per element (one level only); anything else is one
message. Messages keep the text they were sent with: they are validated, never re-serialised.
On the log each message is followed by a comma, so that `[`, a range without its last byte, and
`]` is the response to a read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import orjson

from headrace.errors import BodyTooLarge, InvalidJson
from headrace.limits import JSON_DEPTH_MAX

_WHITESPACE: Final = b" \t\n\r"
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
        raise InvalidJson(_TOO_DEEP) from None


_TOO_DEEP = f"The body nests deeper than {JSON_DEPTH_MAX} levels."


def _explain(error: orjson.JSONDecodeError) -> str:
    if "ecursion" in error.msg:
        return _TOO_DEEP
    return f"The body is not valid JSON: {error.msg} at character {error.pos}."


def wire_bytes(messages: Sequence[bytes]) -> bytes:
    """Messages as they stand on the log."""
    return b",".join(messages) + b","


def response_body(data: bytes) -> bytes:
    """A range of the log as a reader receives it."""
    return b"[%b]" % data[:-1]
