"""JSON values as the texts that Postgres reads: the reverse of `headrace.postgres.values`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import msgspec

Kind = Literal["plain", "json", "array"]

_NULL: Final = b"null"
_string = msgspec.json.Decoder(str)
_elements = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class ColumnText:
    """How values of one column are written; of an array, how its elements are."""

    kind: Kind = "plain"
    element: Kind = "plain"
    delimiter: str = ","

    def of_json(self, value: bytes, *, has_document_texts: bool = False) -> str | None:
        """The text for a JSON value. Null is NULL, also where JSON's own null could be meant."""
        if value == _NULL:
            return None
        if self.kind == "json" and not has_document_texts:
            return value.decode()
        if self.kind == "array" and value.startswith(b"["):
            return self._array(value)
        return _scalar(value)

    def of_key_part(self, part: str | None) -> str | None:
        """The text for a part of a key, which is a text already unless it is an array."""
        if part is not None and self.kind == "array" and part.startswith("["):
            return self._array(part.encode())
        return part

    def _array(self, value: bytes) -> str:
        parts = (self._element(bytes(raw).strip()) for raw in _elements.decode(value))
        return "{" + self.delimiter.join(parts) + "}"

    def _element(self, value: bytes) -> str:
        if value == _NULL:
            return "NULL"
        if self.element == "json":
            return _quoted(value.decode())
        return self._array(value) if value.startswith(b"[") else _quoted(_scalar(value))


def _scalar(value: bytes) -> str:
    return _string.decode(value) if value.startswith(b'"') else value.decode()


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
