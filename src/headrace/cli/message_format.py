"""How one message is printed: as it was sent, as a JSON object, or by a template.

A JSON message keeps its spelling in all three (`1.50` stays `1.50`): it is copied, never parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headrace.client import Event

Format = Callable[["Event[Any]"], bytes]

# The letters of kcat, where it has the field.
FIELDS: Final[dict[str, Callable[[str, Event[Any]], bytes]]] = {
    "s": lambda _, event: event.value,
    "S": lambda _, event: b"%d" % len(event.value),
    "o": lambda _, event: event.offset.encode(),
    "n": lambda _, event: (event.next_offset or "").encode(),
    "i": lambda _, event: b"%d" % event.index,
    "t": lambda stream, _: stream.encode(),
    "%": lambda _stream, _event: b"%",
}
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PARTS: Final = re.compile(r"%(.?)|\\(.?)|[^%\\]+", re.DOTALL)


class BadTemplate(ValueError):
    """A template that names something unknown; the message lists what there is."""


def one_line(message: bytes) -> bytes:
    """A JSON message on one line: a line end between its parts would split it."""
    return message.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


def as_sent(*, json_stream: bool) -> Format:
    """JSON one message per line, any other stream byte for byte."""
    return (lambda event: one_line(event.value)) if json_stream else (lambda event: event.value)


def as_object(*, json_stream: bool) -> Format:
    """One JSON object per line: offset, index, next_offset and value."""

    def line(event: Event[Any]) -> bytes:
        place = {"offset": event.offset, "index": event.index, "next_offset": event.next_offset}
        head = json.dumps(place)[:-1].encode()
        if json_stream:
            value = event.value
        else:
            text = event.value.decode("utf-8", "backslashreplace")
            value = json.dumps(text, ensure_ascii=False).encode()
        return one_line(b'%s, "value": %s}' % (head, value))

    return line


def template(text: str, stream: str) -> Format:
    """A template such as `%o %s\\n`; raises BadTemplate."""
    parts = [_part(match) for match in _PARTS.finditer(text)]

    def line(event: Event[Any]) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(stream, event) for part in parts)

    return line


def _part(match: re.Match[str]) -> bytes | Callable[[str, Event[Any]], bytes]:
    field, escape = match.groups()
    if field is not None:
        if field not in FIELDS:
            known = " ".join(f"%{letter}" for letter in FIELDS)
            raise BadTemplate(f"%{field} is not a field; fields are {known}")
        return FIELDS[field]
    if escape is not None:
        if escape not in _ESCAPES:
            known = " ".join(f"\\{letter}" for letter in _ESCAPES)
            raise BadTemplate(f"\\{escape} is not an escape; escapes are {known}")
        return _ESCAPES[escape]
    return match[0].encode()
