"""A shape's log as a durable stream: appended in whole transactions, read from any of its places.

Every entry carries its own address, so a log can be read back after a restart and from any message
on. In memory stays one line per append: the address of its last entry, and the stream's offset
behind it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from headrace.client import Client, ProducerStamp, Stream
from headrace.shapes.definition import BEFORE_ALL, Offset, offset_text, parse_offset
from headrace.shapes.messages import Entry

CHUNK_BYTES = 1 << 20  # one append, and about one answer
BEGINNING = "-1"


@dataclass(frozen=True)
class Chunk:
    """Entries behind a place in the log; `end` is the address of the last, or that place."""

    entries: list[dict[str, Any]]
    end: Offset


class ShapeLog:
    """Appends come from one thread at a time; reads from the event loop."""

    def __init__(self, client: Client, http: httpx.AsyncClient, name: str, epoch: int) -> None:
        self._stream: Stream = client.stream(name)
        self._http = http
        self._producer = f"shapes-{epoch}"
        self._sent = 0
        self._ends: list[Offset] = []
        self._offsets: list[str] = []

    @property
    def last(self) -> Offset:
        """The address of the last entry; (0, 0) before there is one."""
        return self._ends[-1] if self._ends else (0, 0)

    def create(self) -> None:
        self._stream.create("application/json")

    def delete(self) -> None:
        self._stream.delete()

    def append(self, entries: Sequence[tuple[Offset, Entry]]) -> None:
        """Append entries with their addresses; durable when this returns."""
        pending: list[bytes] = []
        size, last = 0, self.last
        for last, entry in entries:
            pending.append(orjson.dumps({**entry, "offset": offset_text(last)}))
            size += len(pending[-1])
            if size >= CHUNK_BYTES:
                self._send(pending, last)
                pending, size = [], 0
        if pending:
            self._send(pending, last)

    def _send(self, encoded: list[bytes], last: Offset) -> None:
        stamp = ProducerStamp(self._producer, 0, self._sent)
        done = self._stream.append(b"[" + b",".join(encoded) + b"]", producer=stamp)
        self._sent += 1
        assert done.next_offset is not None, "only repeats of long ago go without"
        # The offset first: a reader on another thread looks the address up.
        self._offsets.append(done.next_offset)
        self._ends.append(last)

    def recover(self) -> None:
        """Learn what the stream holds already."""
        for batch in self._stream.read().batches():
            if batch.items:
                self._offsets.append(batch.next_offset)
                self._ends.append(parse_offset(batch.items[-1]["offset"]))

    async def read(self, start: Offset) -> Chunk:
        """What lies behind `start`, up to about a megabyte."""
        line = bisect_right(self._ends, start)
        if line == len(self._ends):
            return Chunk([], start)
        offset = BEGINNING if line == 0 else self._offsets[line - 1]
        answer = await self._http.get(self._stream.url, params={"offset": offset})
        answer.raise_for_status()
        entries = orjson.loads(answer.content)
        if start != BEFORE_ALL:
            entries = [entry for entry in entries if parse_offset(entry["offset"]) > start]
        end = parse_offset(entries[-1]["offset"]) if entries else start
        return Chunk(entries, end)
