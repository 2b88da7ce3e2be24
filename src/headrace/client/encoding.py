"""What a caller appends, as bytes to send: values as JSON texts, text and bytes as they are."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

import msgspec

from headrace.errors import InvalidJson

_encode = msgspec.json.Encoder().encode


def encode_json(values: Iterable[Any]) -> bytes:
    """One message per value; a value that is a list stays one message."""
    return b"[%b]" % b",".join(map(encode_value, values))


def encode_value(value: Any) -> bytes:
    """One value as JSON; `InvalidJson` if JSON has no way to write it."""
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidJson(f"This {type(value).__name__} is not a JSON value: {error}.") from None
    # The encoder writes null for a number that JSON does not have: what is read back would be
    # another value than was appended.
    if b"null" in text and not _is_finite(msgspec.to_builtins(value)):
        raise InvalidJson(
            "NaN and Infinity are not JSON. Append None or a text in place of such a number."
        )
    return text


def check_texts(messages: Iterable[bytes]) -> None:
    """`InvalidJson` unless each is one JSON text: joined with others, `1,2` would be two."""
    for message in messages:
        try:
            msgspec.json.decode(message, type=msgspec.Raw)
        except msgspec.MsgspecError as error:
            raise InvalidJson(f"{message[:40]!r} is not one JSON value: {error}.") from None


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(_is_finite, value))


def encode_data(data: object) -> bytes:
    """Text as UTF-8, bytes as they are; TypeError for a value, which `append_json` takes."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode("utf-8")
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"append takes bytes or text; append_json takes this {type(data).__name__}.")
