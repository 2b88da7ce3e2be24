"""Rows as request bodies: how many rows an append holds, and what makes one message each.

Values stay in Arrow arrays until they are a body: a loop over rows costs more than the append.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.headers import JSON, media_type

_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])


class BadRow(ValueError):
    """A row that cannot be written; nothing of its append was."""


class Chunker:
    """Gathers the values of each stream into chunks, by what was given and nothing else."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._held: dict[str, _Held] = {}

    def add(self, stream: str, values: pa.Array) -> Iterator[pa.Array]:
        """Take values; give every chunk that is full."""
        held = self._held.setdefault(stream, _Held())
        ends = _ends(values) + np.arange(1, len(values) + 1)  # with what separates them
        first, before = 0, 0
        while first < len(values):
            room = self._rows_max - held.rows
            last = int(np.searchsorted(ends, before + self._bytes_max - held.bytes, side="right"))
            last = min(last, first + room, len(values))
            if not held.rows:
                last = max(last, first + 1)  # a message that is larger goes alone
            if last > first:
                held.take(values.slice(first, last - first), int(ends[last - 1]) - before)
                first, before = last, int(ends[last - 1])
            if first < len(values):
                yield held.joined()
                held = self._held[stream] = _Held()

    def rest(self) -> Iterator[tuple[str, pa.Array]]:
        for stream, held in self._held.items():
            if held.rows:
                yield stream, held.joined()
        self._held = {}


class _Held:
    """Values of one stream that wait for more."""

    def __init__(self) -> None:
        self.parts: list[pa.Array] = []
        self.rows = self.bytes = 0

    def take(self, values: pa.Array, size: int) -> None:
        self.parts.append(values)
        self.rows += len(values)
        self.bytes += size

    def joined(self) -> pa.Array:
        return self.parts[0] if len(self.parts) == 1 else pa.concat_arrays(self.parts)


def by_stream(streams: pa.Array, values: pa.Array) -> Iterator[tuple[str | None, pa.Array]]:
    """The values of each stream, in the order they have; None for those that name no stream."""
    found = streams.dictionary_encode(null_encoding="encode")
    names = found.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], values
        return
    numbers = found.indices.to_numpy(zero_copy_only=False)
    ordered = values.take(pa.array(np.argsort(numbers, kind="stable")))
    first = 0
    for name, count in zip(names, np.bincount(numbers, minlength=len(names)), strict=True):
        yield name, ordered.slice(first, int(count))
        first += int(count)


def bodies_of(stream: str, content_type: str, values: pa.Array) -> list[bytes]:
    """Request bodies that append each value as one message.

    JSON takes a whole chunk as one array. Elsewhere a body is a message, so each value is one.
    """
    if values.null_count or not _lengths(values).all():
        raise BadRow(f"{stream}: a row without a value cannot be a message.")
    if media_type(content_type) == JSON:
        return [json_body(stream, values)]
    found: list[bytes] = values.to_pylist()
    return found


def json_body(stream: str, values: pa.Array) -> bytes:
    """An array whose elements are exactly `values`."""
    one_list = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    body = b"[%b]" % pc.binary_join(one_list, b",")[0].as_py()
    try:
        lengths = list(map(len, _ELEMENTS.decode(body)))
    except (msgspec.DecodeError, RecursionError):
        lengths = []
    if not np.array_equal(lengths, _lengths(values)):
        # Either white space around a value, or one that is none or more than one.
        for number, value in enumerate(values.to_pylist()):
            _check_json(stream, number, value)
    return body


def _ends(values: pa.Array) -> np.ndarray[Any, Any]:
    """Where each value ends, in bytes from the first one's beginning."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    offsets = offsets[values.offset : values.offset + len(values) + 1]
    ends: np.ndarray[Any, Any] = (offsets[1:] - offsets[0]).astype(np.int64)
    return ends


def _lengths(values: pa.Array) -> np.ndarray[Any, Any]:
    return np.diff(_ends(values), prepend=0)


def _check_json(stream: str, number: int, value: bytes) -> None:
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError as error:
        shown = value[:80].decode("utf-8", "replace")
        raise BadRow(
            f"{stream} takes JSON, and row {number} of its append is not one JSON value "
            f"({error.msg}): {shown!r}"
        ) from None
