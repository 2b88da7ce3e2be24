"""A shape's log: appended in pieces, published in whole transactions, read from any of its places.

Every entry carries its own address, so a log can be read back after a restart and from any message
on. It lies in as many streams, its segments, as the server's `limits.max_stream_bytes` makes
necessary. In memory stays one line per append: the address of its last entry, and the place behind
it. Readers see nothing behind `last`, which is between transactions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

import httpx
import orjson

from headrace.client import Client, ProducerStamp, Stream
from headrace.errors import StreamDeleted, StreamFull, StreamNotFound
from headrace.shapes.definition import BEFORE_ALL, Offset, offset_text, parse_offset
from headrace.shapes.messages import Entry, is_last_of_transaction

APPEND_BYTES = 256 * 1024
CHUNK_BYTES = 1 << 20  # about one answer
BEGINNING = "-1"
NOTHING: Offset = (0, 0)  # the address of the last entry, before there is one


class LogBroken(RuntimeError):
    """The streams of a log do not hold what was appended to them."""


@dataclass(frozen=True)
class LogChunk:
    """Entries behind a place in the log; `end` is the address of the last, or that place.

    It is whole if nothing else was published when it was read. More may be published before it is
    sent: otherwise a reader of a busy table would never be up to date.
    """

    entries: list[dict[str, Any]]
    end: Offset
    is_whole: bool = True


@dataclass(frozen=True)
class _Place:
    """Where to go on reading: a segment by its number, and the stream's offset in it."""

    segment: int
    offset: str


class ShapeLog:
    """Appends come from one thread at a time; reads from the event loop."""

    def __init__(self, client: Client, http: httpx.AsyncClient, name: str, epoch: int) -> None:
        self._client = client
        self._http = http
        self._name = name
        self._producer = f"shapes-{epoch}"
        self._sent = 0  # to the last segment, by this producer
        self._segments: list[Stream] = []
        self._ends: list[Offset] = []
        self._places: list[_Place] = []
        self._snapshot_last: Offset | None = None
        self.last = NOTHING

    @property
    def tail(self) -> Offset:
        """The address of the last entry that is durable, whether readers see it or not."""
        return self._ends[-1] if self._ends else NOTHING

    def create(self) -> None:
        """Begin the next segment; of a new log, the first."""
        stream = self._segment(len(self._segments))
        stream.create("application/json")
        self._segments.append(stream)
        self._sent = 0

    def delete(self) -> None:
        """Delete every segment there is, from the last: what a crash leaves is found again."""
        while not self._segments or self._exists(self._segment(len(self._segments))):
            self._segments.append(self._segment(len(self._segments)))
        for stream in reversed(self._segments):
            stream.delete()

    def append(self, entries: Iterable[tuple[Offset, Entry]]) -> None:
        """Append entries with their addresses; durable when this returns, seen once published.

        What is there already is left out: after a crash a transaction comes again.
        """
        pending: list[bytes] = []
        size, last, tail = 0, self.tail, self.tail
        for address, entry in entries:
            if address <= tail and self._ends:
                continue
            last = address
            if address[0] == 0:
                self._snapshot_last = address
            pending.append(orjson.dumps({**entry, "offset": offset_text(address)}))
            size += len(pending[-1])
            if size >= APPEND_BYTES:
                self._send(pending, last)
                pending, size = [], 0
        if pending:
            self._send(pending, last)

    def publish(self) -> None:
        """Let readers see all that was appended: it ends with a whole transaction."""
        self.last = self.tail

    def _send(self, encoded: list[bytes], last: Offset) -> None:
        body = b"[" + b",".join(encoded) + b"]"
        try:
            offset = self._offset_behind(body)
        except StreamFull:
            if self._sent == 0 and self._starts_here:
                raise  # not even an empty stream takes it
            self.create()
            offset = self._offset_behind(body)
        # The place first: a reader on another thread looks the address up.
        self._places.append(_Place(len(self._segments) - 1, offset))
        self._ends.append(last)

    @property
    def _starts_here(self) -> bool:
        """Whether the last segment is empty."""
        return not self._places or self._places[-1].segment < len(self._segments) - 1

    def _offset_behind(self, body: bytes) -> str:
        stamp = ProducerStamp(self._producer, 0, self._sent)
        done = self._segments[-1].append(body, producer=stamp)
        self._sent += 1
        assert done.next_offset is not None, "only repeats of long ago go without"
        return done.next_offset

    def recover(self) -> None:
        """Learn what the streams hold already; StreamNotFound if there is no such log.

        A transaction that a crash cut short ends without its last entry, and will come again.
        """
        while not self._segments or self._exists(self._segment(len(self._segments))):
            number, stream = len(self._segments), self._segment(len(self._segments))
            for batch in stream.read().batches():
                if not batch.items:
                    continue
                self._places.append(_Place(number, batch.next_offset))
                addresses = [parse_offset(entry["offset"]) for entry in batch.items]
                self._ends.append(addresses[-1])
                of_snapshot = [address for address in addresses if address[0] == 0]
                self._snapshot_last = max(of_snapshot, default=self._snapshot_last)
                ends = (i for i in reversed(batch.items) if is_last_of_transaction(i))
                if (end := next(ends, None)) is not None:
                    self.last = parse_offset(end["offset"])
            self._segments.append(stream)

    def _segment(self, number: int) -> Stream:
        name = f"{self._name}.{number + 1}" if number else self._name
        return self._client.stream(name, content_type="application/json")

    def _exists(self, stream: Stream) -> bool:
        try:
            stream.head()
        except (StreamNotFound, StreamDeleted):
            return False
        return True

    async def read(self, start: Offset) -> LogChunk:
        """What is published behind `start`: about a megabyte of it, or one row that is larger.

        A chunk ends where an append ended, if there is such a place: the next begins there. From
        the beginning there is only the snapshot: what caches keep for long does not grow.
        """
        # An address with 0 or inf is between entries, and may be ahead of the log.
        if 0 < start[1] < inf and start > self.last:
            raise LogBroken(
                f"The log {self._name} ends at {offset_text(self.last)}, and a reader has had "
                f"{offset_text(start)}."
            )
        last = self._snapshot_last if start == BEFORE_ALL else self.last
        if last is None or last <= start or not self._ends:
            return LogChunk([], start)
        line = bisect_right(self._ends, start)
        place = self._places[line - 1] if line else _Place(0, BEGINNING)
        found: list[dict[str, Any]] = []
        size, end = 0, start
        while size < CHUNK_BYTES and end < last:
            answer, behind = await self._ask(place)
            if behind == place:
                raise LogBroken(f"The log {self._name} ends before {offset_text(last)}.")
            place = behind
            news = [(parse_offset(entry["offset"]), entry) for entry in orjson.loads(answer)]
            news = [(address, entry) for address, entry in news if start < address <= last]
            if news:
                found += (entry for _, entry in news)
                end = news[-1][0]
                size += len(answer)
        return self._cut(found, start, end, last)

    async def _ask(self, place: _Place) -> tuple[bytes, _Place]:
        """One answer of a segment, and where to go on."""
        url = self._segments[place.segment].url
        answer = await self._http.get(url, params={"offset": place.offset})
        if answer.status_code in (404, 410):
            raise LogBroken(f"The log {self._name} is gone from the server.")
        answer.raise_for_status()
        behind = _Place(place.segment, answer.headers["stream-next-offset"])
        if place.segment + 1 < len(self._segments) and behind == self._end_of(place.segment):
            behind = _Place(place.segment + 1, BEGINNING)
        return answer.content, behind

    def _end_of(self, segment: int) -> _Place:
        return next(place for place in reversed(self._places) if place.segment == segment)

    def _cut(
        self, found: list[dict[str, Any]], start: Offset, end: Offset, last: Offset
    ) -> LogChunk:
        if end < last:
            line = bisect_right(self._ends, end)
            if line and self._ends[line - 1] > start:
                end = self._ends[line - 1]
                found = [entry for entry in found if parse_offset(entry["offset"]) <= end]
        return LogChunk(found, end, is_whole=end >= last)
