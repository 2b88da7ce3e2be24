"""The type of a column that no schema describes, as its values suggest it."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.changes.events import ColumnShape


def guessed(name: str, values: Iterable[bytes]) -> ColumnShape:
    """A column as its values suggest it, where no schema says what it is."""
    kinds = {_guess(value) for value in values} - {"null"}
    if len(kinds) == 1:
        return ColumnShape(name, kinds.pop())
    is_number = kinds and kinds <= {"bigint", "double precision"}
    return ColumnShape(name, "double precision" if is_number else "text")


def _guess(value: bytes) -> str:
    if value == b"null":
        return "null"
    if value in (b"true", b"false"):
        return "boolean"
    if value[:1] in (b"{", b"["):
        return "jsonb"
    if value[:1].isdigit() or value[:1] == b"-":
        return "bigint" if value.lstrip(b"-").isdigit() and len(value) < 19 else "double precision"
    return "text"
