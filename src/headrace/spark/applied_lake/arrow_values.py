"""JSON values, and the texts of keys, as the values of Arrow columns.

What a type does not hold is refused rather than bent: a value that would be rounded, cut or wrapped
is one that the source's column does not have. Only a decimal with more digits behind the point is
rounded, as Postgres does it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import types

from headrace.changes.change_keys import text_of
from headrace.changes.events import NotAChange

_SHOWN_BYTES_MAX: Final = 100
_BOOLEANS: Final = {"true": True, "t": True, "false": False, "f": False}
_elements = msgspec.json.Decoder(list[msgspec.Raw])

Reader = Callable[[bytes], Any]
"""Of a JSON value that is not null; ValueError if the type does not hold it."""


def value_of(column: str, value: bytes, kind: pa.DataType) -> Any:
    """A JSON value as one of the column; NotAChange says what does not fit."""
    if value == b"null":
        return None
    try:
        return _reader(kind)(value)
    except (ValueError, TypeError, OverflowError, InvalidOperation, pa.ArrowException):
        shown = value[:_SHOWN_BYTES_MAX].decode(errors="replace")
        raise NotAChange(f"{column}: {shown} is not a value of the type {kind}") from None


def key_part_of(column: str, part: str | None, kind: pa.DataType) -> Any:
    """A part of a key's text as a value of the column."""
    if part is None:
        raise NotAChange(f"the key has no value for {column}")
    return value_of(column, msgspec.json.encode(part), kind)


@lru_cache(maxsize=1024)
def _reader(kind: pa.DataType) -> Reader:
    for is_kind, read in _READERS:
        if is_kind(kind):
            return read(kind)
    return lambda value: pa.scalar(msgspec.json.decode(value), kind).as_py()


def _text(value: bytes) -> str:
    text = text_of(value)
    assert text is not None, "null is read before"
    return text


def _texts(kind: pa.DataType) -> Reader:
    return _text


def _booleans(kind: pa.DataType) -> Reader:
    def read(value: bytes) -> bool:
        found = _BOOLEANS.get(_text(value))
        if found is None:
            raise ValueError(value)
        return found

    return read


def _integers(kind: pa.DataType) -> Reader:
    is_signed = types.is_signed_integer(kind)
    beyond = 1 << (kind.bit_width - is_signed)
    least = -beyond if is_signed else 0

    def read(value: bytes) -> int:
        text = _text(value)
        if not (text.isascii() and text.removeprefix("-").isdigit()):
            raise ValueError(text)
        found = int(text)
        if not least <= found < beyond:
            raise OverflowError(text)
        return found

    return read


def _floats(kind: pa.DataType) -> Reader:
    return lambda value: float(_text(value))


def _decimals(kind: pa.DataType) -> Reader:
    digits = Context(prec=kind.precision, rounding=ROUND_HALF_UP)
    last = Decimal(1).scaleb(-kind.scale)

    def read(value: bytes) -> Decimal:
        found = Decimal(_text(value))
        if not found.is_finite():
            raise ValueError(value)
        return found.quantize(last, context=digits)

    return read


def _bytes(kind: pa.DataType) -> Reader:
    """As Postgres prints them, `\\x` and two digits each; else the text itself."""

    def read(value: bytes) -> bytes:
        text = _text(value)
        return bytes.fromhex(text[2:]) if text.startswith("\\x") else text.encode()

    return read


def _dates(kind: pa.DataType) -> Reader:
    return lambda value: date.fromisoformat(_text(value))


def _times(kind: pa.DataType) -> Reader:
    return lambda value: time.fromisoformat(_text(value))


def _timestamps(kind: pa.DataType) -> Reader:
    """With a zone they are points in time, without one what a clock on the wall shows."""
    has_zone = kind.tz is not None

    def read(value: bytes) -> datetime:
        found = datetime.fromisoformat(_text(value))
        if not has_zone:
            return found.replace(tzinfo=None)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)

    return read


def _lists(kind: pa.DataType) -> Reader:
    read = _reader(kind.value_type)

    def elements(value: bytes) -> list[Any]:
        parts = (bytes(raw).strip() for raw in _elements.decode(value))
        return [None if part == b"null" else read(part) for part in parts]

    return elements


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind))


_IsKind = Callable[[pa.DataType], bool]
_READERS: Final[tuple[tuple[_IsKind, Callable[[pa.DataType], Reader]], ...]] = (
    (_is_text, _texts),
    (types.is_integer, _integers),
    (types.is_boolean, _booleans),
    (types.is_floating, _floats),
    (types.is_decimal, _decimals),
    (_is_bytes, _bytes),
    (types.is_date, _dates),
    (types.is_timestamp, _timestamps),
    (types.is_time, _times),
    (_is_list, _lists),
)
