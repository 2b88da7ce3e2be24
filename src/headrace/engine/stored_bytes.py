"""Counts the payload bytes that are stored, against `limits.max_memory_bytes` in memory mode.

The bytes of clients' streams and of snapshots count, once each: a fork counts its own bytes only,
and a blob that several streams share counts once. The registry and the feeds of buckets do not
count: they are the server's own, and must be able to record a deletion at the limit.

    counted when                                 released when
    an append or initial content is decided      bytes are reclaimed, or the stream is removed
    a snapshot is accepted, before it is stored  it is refused after all, or its last user goes
    recovery finds streams and blobs             a recovered stream is set aside
"""

from __future__ import annotations

from headrace.engine.stream_runtime import Stream
from headrace.errors import MemoryFull
from headrace.protocol.buckets import is_own


class StoredBytes:
    __slots__ = ("limit", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0

    def try_reserve(self, count: int) -> bool:
        """Count bytes that are about to be stored; False if they exceed the limit."""
        total = self.total + count
        if total > self.limit:
            return False
        self.total = total
        return True

    def reserve(self, count: int) -> None:
        if not self.try_reserve(count):
            raise self.refusal()

    def refusal(self) -> MemoryFull:
        return MemoryFull(self.limit)

    def add(self, count: int) -> None:
        """Count what is stored already, whatever the limit is now."""
        self.total += count

    def release(self, count: int) -> None:
        self.total -= count

    def release_of(self, stream: Stream, count: int) -> None:
        """Some bytes of a stream were reclaimed."""
        if not is_own(stream.state.name):
            self.total -= count

    def add_stream(self, stream: Stream) -> None:
        if not is_own(stream.state.name):
            self.total += stream.log.stored_bytes

    def release_stream(self, stream: Stream) -> None:
        self.release_of(stream, stream.log.stored_bytes)
