"""Offsets: the token of a position in a stream.

A token is `%016d_%016d`: messages before the position, then bytes before it. Tokens sort as text
in stream order, are opaque to clients, and never equal the sentinels `-1` and `now`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from headrace.errors import InvalidOffset

BEGINNING: Final = "-1"
NOW: Final = "now"
_TOKEN = re.compile(r"([0-9]{16})_([0-9]{16})")


class Position(NamedTuple):
    """A point between two messages: how many messages and bytes come before it."""

    messages: int
    bytes: int

    def token(self) -> str:
        return f"{self.messages:016d}_{self.bytes:016d}"

    def __str__(self) -> str:
        return self.token()


START: Final = Position(0, 0)
_new = tuple.__new__


def advance(start: Position, messages: int, byte_count: int) -> Position:
    """The position so many messages and bytes behind `start`; every append makes one."""
    return _new(Position, (start[0] + messages, start[1] + byte_count))


def parse_token(text: str, besides: str = "") -> Position:
    """Read a token; raise InvalidOffset for anything else, the sentinels included.

    `besides` are those that the caller takes, for the sentence.
    """
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise InvalidOffset(
            f"The offset {text[:64]!r} is not one this server returns; use {besides}the value of "
            "a Stream-Next-Offset header."
        )
    return Position(int(match[1]), int(match[2]))
