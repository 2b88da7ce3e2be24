"""Chunks as what they hold: text, JSON values, batches, events with their place."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from headrace.client.failures import BadAnswer
from headrace.client.reading import Chunk, Reading
from headrace.protocol.headers import is_json

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """The JSON messages of one chunk."""

    items: list[T]
    offset: str
    next_offset: str
    up_to_date: bool
    closed: bool


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """One message and its place: the `index`-th after `offset`.

    Reading again from `offset` and leaving out the first `index + 1` goes on right after it
    (`read(offset=event.offset, skip=event.index + 1)`). After the last message of its chunk
    `next_offset` says the same with `skip=0`; before that it is None.
    """

    value: T
    offset: str
    index: int
    next_offset: str | None


def parse_json(url: str, data: bytes) -> list[Any]:
    """The messages of a JSON body."""
    if not data:
        return []
    try:
        # msgspec, not orjson: an integer beyond 64 bits stays the number it is.
        items = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadAnswer(url, f"it is not JSON: {error}") from None
    if not isinstance(items, list):
        raise BadAnswer(url, "it is JSON, but no array of messages")
    return items


def batch_of(url: str, chunk: Chunk) -> Batch[Any]:
    items = parse_json(url, chunk.data)
    return Batch(items, chunk.offset, chunk.next_offset, chunk.up_to_date, chunk.closed)


class TextView:
    """Text of bytes that may be cut inside a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, chunk: Chunk) -> str:
        return self._decoder.decode(chunk.data, final=chunk.closed)


class EventView:
    """Messages one by one; of a stream that is not JSON, what each answer brought is one."""

    def __init__(self, url: str, skip: int = 0) -> None:
        self._url = url
        self._skip = skip

    @staticmethod
    def of(reading: Reading) -> EventView:
        reading.typed = True
        return EventView(reading.url, reading.skip)

    def feed(self, chunk: Chunk) -> Iterator[Event[Any]]:
        if not chunk.data:
            return
        values: Iterable[Any] = [chunk.data]
        if is_json(chunk.content_type or ""):
            values = parse_json(self._url, chunk.data)
        numbered = list(enumerate(values))
        for index, value in numbered:
            if self._skip:
                self._skip -= 1
                continue
            last = index == len(numbered) - 1
            yield Event(value, chunk.offset, index, chunk.next_offset if last else None)
