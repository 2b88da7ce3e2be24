"""A row's key as text, as postgres-to-stream writes it, and back.

A single value is itself, and an empty one is `%empty`. Several are joined with `/`; in them `%` is
`%25`, `/` is `%2F` and null is `%null`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_EMPTY = "%empty"
_LIKE_EMPTY = re.compile(r"%(25)*empty")
_NULL = "%null"


def key_text(values: Sequence[str | None]) -> str:
    if len(values) == 1:
        return _alone(values[0])
    return "/".join(
        _NULL if value is None else value.replace("%", "%25").replace("/", "%2F")
        for value in values
    )


def key_values(text: str, count: int) -> list[str | None]:
    """The values of `count` key columns; ValueError if the text has another number of them."""
    if count == 1:
        return [_of_alone(text)]
    parts = text.split("/")
    if len(parts) != count:
        raise ValueError(f"the key {text!r} has {len(parts)} parts, and the table's key {count}")
    return [
        None if part == _NULL else part.replace("%2F", "/").replace("%25", "%") for part in parts
    ]


def _alone(value: str | None) -> str:
    if not value:
        return _EMPTY if value == "" else ""
    return value.replace("%", "%25") if _LIKE_EMPTY.fullmatch(value) else value


def _of_alone(text: str) -> str:
    if text == _EMPTY:
        return ""
    return text.replace("%25", "%", 1) if _LIKE_EMPTY.fullmatch(text) else text
