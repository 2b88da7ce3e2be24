"""Bounds of a catch-up read: where it ends, how much it holds, and whether messages are framed.

An addition of this server. A bounded read still ends on a message boundary, and a first message
that is larger than the bound by bytes still comes whole: a reader always gets on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from headrace.errors import InvalidRequest
from headrace.limits import INTEGER_MAX
from headrace.protocol.offsets import Position, parse_token

FIELDS: Final = frozenset({"until", "max_messages", "max_bytes", "format"})
FRAMED: Final = "framed"


class ReadBounds(msgspec.Struct, frozen=True):
    """`until` is exclusive; None bounds nothing."""

    until: Position | None = None
    messages_max: int | None = None
    bytes_max: int | None = None
    framed: bool = False


def parse_bounds(fields: Mapping[str, str]) -> ReadBounds | None:
    """The bounds among a read's query parameters; None where there are none."""
    if FIELDS.isdisjoint(fields):
        return None
    until, form = fields.get("until"), fields.get("format")
    if form not in (None, FRAMED):
        raise InvalidRequest(f"format must be {FRAMED}, not {form[:64]!r}.")
    return ReadBounds(
        until=None if until is None else parse_token(until),
        messages_max=parse_bound("max_messages", fields.get("max_messages")),
        bytes_max=parse_bound("max_bytes", fields.get("max_bytes")),
        framed=form is not None,
    )


def parse_bound(name: str, value: object) -> int | None:
    """A whole number from 1, from a query parameter or a JSON document."""
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 16:
        value = int(value)
    if type(value) is int and 1 <= value <= INTEGER_MAX:
        return value
    raise InvalidRequest(f"{name} must be a whole number from 1, not {str(value)[:64]!r}.")
