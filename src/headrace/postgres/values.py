"""How a Postgres value becomes JSON: by its type, from the text Postgres prints.

Numbers that JavaScript can hold are numbers; `numeric` stays text, because a double would round
it; `json` and `jsonb` are embedded; arrays are arrays; everything else is the text Postgres
prints under `SESSION`. The Electric client makes the same choices.
"""

from __future__ import annotations

from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Final

from psycopg.postgres import types

Encoder = Callable[[str], str]

# Every connection whose text we read prints the same way, whatever the server is set to.
SESSION = (
    "-c datestyle=ISO -c timezone=UTC -c intervalstyle=iso_8601 -c bytea_output=hex"
    " -c extra_float_digits=1 -c client_encoding=UTF8"
)

_INTEGERS = frozenset({"int2", "int4", "int8", "oid"})
_FLOATS = frozenset({"float4", "float8"})
_DOCUMENTS = frozenset({"json", "jsonb"})
NOT_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")  # to JSON; to Postgres they are

quoted_text: Encoder = encode_basestring


def encoder(type_oid: int) -> Encoder:
    """What turns the text of a value of this type into JSON text."""
    info = types.get(type_oid)
    if info is None:
        return quoted_text
    scalar = _scalar(info.name)
    return array_encoder(scalar, info.delimiter) if info.array_oid == type_oid else scalar


def array_encoder(element: Encoder, delimiter: str) -> Encoder:
    return lambda text: _array(text, element, delimiter)


def _scalar(name: str) -> Encoder:
    if name in _INTEGERS or name in _DOCUMENTS:
        return as_printed
    if name in _FLOATS:
        return number
    if name == "bool":
        return boolean
    return quoted_text


def as_printed(text: str) -> str:
    return text


def boolean(text: str) -> str:
    return "true" if text == "t" else "false"


def number(text: str) -> str:
    return quoted_text(text) if text in NOT_NUMBERS else text


def _array(text: str, element: Encoder, delimiter: str) -> str:
    """A Postgres array literal, such as `{1,NULL,"a b"}` or `[0:1]={1,2}`, as a JSON array."""
    start = text.index("{")
    out: list[str] = []
    position = start
    while position < len(text):
        mark = text[position]
        if mark == "{" or mark == "}" or mark == delimiter:
            out.append({"{": "[", "}": "]"}.get(mark, ","))
            position += 1
        elif mark == '"':
            word, position = _quoted(text, position + 1)
            out.append(element(word))
        else:
            word, position = _bare(text, position, delimiter)
            out.append("null" if word == "NULL" else element(word))
    return "".join(out)


def _quoted(text: str, position: int) -> tuple[str, int]:
    word: list[str] = []
    while text[position] != '"':
        if text[position] == "\\":
            position += 1
        word.append(text[position])
        position += 1
    return "".join(word), position + 1


def _bare(text: str, position: int, delimiter: str) -> tuple[str, int]:
    end = position
    while text[end] not in "{}" and text[end] != delimiter:
        end += 1
    return text[position:end], end
