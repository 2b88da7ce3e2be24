"""Chunks as what they hold: text, JSON values, batches, events with their place."""

from __future__ import annotations

import codecs
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar

import msgspec

from headrace.client.errors import BadAnswer
from headrace.client.stream_reading import Chunk, Reading
from headrace.protocol.framed import Frame
from headrace.protocol.headers import is_json
from headrace.protocol.offsets import Position, parse_token

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

    A Headrace server says where each message begins (`offset`, with `index` 0) and ends
    (`next_offset`). Others only say where an answer does: then `next_offset` is None before the
    last message of an answer, and `read(offset=event.offset, skip=event.index + 1)` goes on
    right after any.
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


def split_json(url: str, data: bytes) -> list[bytes]:
    """The messages of a JSON body, each as it was sent."""
    if not data:
        return []
    try:
        items = msgspec.json.decode(data, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadAnswer(url, f"it is not a JSON array of messages: {error}") from None
    return [bytes(item) for item in items]


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
    """Messages one by one, each with its place.

    Of a stream that is not JSON, what an answer brought is one, unless the answer was framed.
    With `raw`, values are the bytes that were appended: JSON is not parsed, so that numbers, keys
    and spaces stay as they were sent.
    """

    def __init__(self, url: str, skip: int = 0, *, raw: bool = False) -> None:
        self._url = url
        self._skip = skip
        self._raw = raw
        self._knows_frames = False
        self._before = 0

    @staticmethod
    def of(reading: Reading, *, raw: bool = False) -> EventView:
        reading.framed = True
        return EventView(reading.url, reading.skip, raw=raw)

    def feed(self, chunk: Chunk) -> Iterator[Event[Any]]:
        for event in self._events(chunk):
            if self._skip:
                self._skip -= 1
            else:
                yield event

    def _events(self, chunk: Chunk) -> Iterator[Event[Any]]:
        if not chunk.data:
            return
        values = self._values(chunk)
        ends = self._ends(chunk)
        if ends is not None:
            for value, (start, end) in zip(values, pairwise(ends), strict=True):
                yield Event(value, start, 0, end)
            return
        # An event stream may bring several data events before it says where they end: until
        # then nothing but the place before the first is known.
        is_end = chunk.next_offset != chunk.offset
        last = self._before + len(values) - 1
        for index, value in enumerate(values, self._before):
            known = chunk.next_offset if is_end and index == last else None
            yield Event(value, chunk.offset, index, known)
        self._before = 0 if is_end else last + 1

    def _values(self, chunk: Chunk) -> list[Any]:
        if is_json(chunk.content_type or ""):
            parse = split_json if self._raw else parse_json
            return parse(self._url, chunk.data)
        if chunk.frame is None:
            return [chunk.data]
        marks = list(accumulate(strides(chunk.frame), initial=0))
        return [chunk.data[start:end] for start, end in pairwise(marks)]

    def _ends(self, chunk: Chunk) -> list[str] | None:
        """Where the first message begins and each ends; None if unknown."""
        if chunk.frame is not None:
            self._knows_frames = True
            return tokens(chunk.frame.start, strides(chunk.frame))
        if self._before or not self._knows_frames or not is_json(chunk.content_type or ""):
            return None
        # Live answers are never framed, but what is in one is counted alike. It must come out
        # at the offset that the server says.
        raw = msgspec.json.decode(chunk.data, type=list[msgspec.Raw])
        ends = tokens(parse_token(chunk.offset), [len(bytes(each)) + 1 for each in raw])
        return ends if ends[-1] == chunk.next_offset else None


def strides(frame: Frame) -> list[int]:
    return [size for (size,) in struct.iter_unpack("<I", frame.strides)]


def tokens(start: Position, sizes: list[int]) -> list[str]:
    """The offsets between messages of these sizes, from before the first to behind the last."""
    ends = accumulate(sizes, initial=start.bytes)
    return [Position(start.messages + n, end).token() for n, end in enumerate(ends)]
