"""Whether a text is a schema in Spark's type syntax, without Spark: only its Java part parses it.

Names and types are checked, not what Spark may add to a type, such as a collation: it has the
last word when the query starts.
"""

from __future__ import annotations

import difflib
import re
from typing import Final

_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|'[^']*'|\"[^\"]*\"|[^\s,:<>()`'\"]+|[,:<>()])")
_TYPES: Final = frozenset(
    {
        "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long",
        "float", "real", "double", "date", "timestamp", "timestamp_ntz", "timestamp_ltz", "time",
        "string", "character", "char", "varchar", "binary", "decimal", "dec", "numeric", "void",
        "interval", "variant", "array", "map", "struct", "geometry", "geography",
    }
)  # fmt: skip
_PUNCTUATION: Final = frozenset(",:<>()")


def check_schema(name: str, text: str) -> None:
    """Raise ValueError, which names the key `name`, if `text` is neither empty nor a schema."""
    if not text.strip():
        return
    try:
        reader = _Reader(text)
        reader.fields()
        reader.end()
    except ValueError as error:
        raise ValueError(
            f"{name}: {text!r} is not a schema such as key string not null, value struct<n: int>: "
            f"{error}."
        ) from None


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        place = 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if found is None:
                raise ValueError(f"{text[place:].strip()[:1]} is not closed")
            self._tokens.append(found[1])
            place = found.end()
        self._at = 0

    def fields(self) -> None:
        while True:
            self._word("a name")
            if self._next == ":":
                self._at += 1
            self._type()
            if self._next != ",":
                return
            self._at += 1

    def end(self) -> None:
        if self._next:
            raise ValueError(f"it should end before {self._next!r}")

    @property
    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _word(self, what: str) -> str:
        found = self._next
        if not found or found in _PUNCTUATION:
            raise ValueError(f"{what} is missing" + (f" before {found!r}" if found else ""))
        self._at += 1
        return found

    def _type(self) -> None:
        name = self._word(f"the type of {self._tokens[self._at - 1]}")
        type_ = name.lower()
        if type_ not in _TYPES:
            close = difflib.get_close_matches(type_, _TYPES, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise ValueError(f"{name} is not a type{hint}")
        if self._next == "<" or type_ in ("array", "map", "struct"):
            self._inside(type_)
        if self._next == "(":
            while self._next not in (")", ""):
                self._at += 1
            self._expect(")")
        while self._next and self._next not in _PUNCTUATION:  # not null, a comment, a collation
            self._at += 1

    def _inside(self, type_: str) -> None:
        self._expect("<")
        if type_ == "array":
            self._type()
        elif type_ == "map":
            self._type()
            self._expect(",")
            self._type()
        elif type_ == "struct" and self._next != ">":
            self.fields()
        self._expect(">")

    def _expect(self, sign: str) -> None:
        if self._next != sign:
            raise ValueError(
                f"{sign!r} is missing" + (f" before {self._next!r}" * bool(self._next))
            )
        self._at += 1
