"""Rows as request bodies: how many rows an append holds, and what makes one message each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import orjson

from headrace.protocol.headers import JSON, media_type

_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])


class BadRow(ValueError):
    """A row that cannot be written; nothing of its append was."""


class Chunker:
    """Gathers the values of each stream into chunks, by what was given and nothing else."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._held: dict[str, list[bytes | None]] = {}
        self._sizes: dict[str, int] = {}

    def add(self, stream: str, values: Sequence[bytes | None]) -> Iterator[list[bytes | None]]:
        """Take values; give every chunk that is full."""
        held = self._held.setdefault(stream, [])
        size = self._sizes.get(stream, 0)
        for value in values:
            length = len(value or b"") + 1
            if held and (len(held) >= self._rows_max or size + length > self._bytes_max):
                yield held
                held, size = [], 0
            held.append(value)
            size += length
        self._held[stream], self._sizes[stream] = held, size

    def rest(self) -> Iterator[tuple[str, list[bytes | None]]]:
        for stream, held in self._held.items():
            if held:
                yield stream, held
        self._held, self._sizes = {}, {}


def bodies_of(stream: str, content_type: str, values: Sequence[bytes | None]) -> Iterator[bytes]:
    """Request bodies that append each value as one message.

    JSON takes a whole chunk as one array. Elsewhere a body is a message, so each value is one.
    """
    for value in values:
        if not value:
            raise BadRow(f"{stream}: a row without a value cannot be a message.")
    present = [value for value in values if value is not None]
    if media_type(content_type) == JSON:
        yield json_body(stream, present)
    else:
        yield from present


def json_body(stream: str, values: Sequence[bytes]) -> bytes:
    """An array whose elements are exactly `values`."""
    body = b"[%b]" % b",".join(values)
    try:
        lengths = [len(bytes(element)) for element in _ELEMENTS.decode(body)]
    except (msgspec.DecodeError, RecursionError):
        lengths = []
    if lengths != [len(value) for value in values]:
        # Either white space around a value, or one that is none or more than one.
        for number, value in enumerate(values):
            _check_json(stream, number, value)
    return body


def _check_json(stream: str, number: int, value: bytes) -> None:
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError as error:
        shown = value[:80].decode("utf-8", "replace")
        raise BadRow(
            f"{stream} takes JSON, and row {number} of its append is not one JSON value "
            f"({error.msg}): {shown!r}"
        ) from None
