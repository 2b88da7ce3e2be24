"""A log whose end is in memory and whose rest is on a disk: what the durable modes share.

The memory is touched by the event loop only. What is cold is read by a function that was given,
on the loop, everything it needs to know.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from headrace.protocol.offsets import START, Position
from headrace.protocol.stream import StreamState
from headrace.storage.base import ColdRead, Range
from headrace.storage.fork_reads import (
    PAST_EVERY_TAIL,
    SeekResult,
    clip,
    read_across_forks,
    seek_across_forks,
)
from headrace.storage.memory import MemoryLog


def own_start(state: StreamState) -> Position:
    """Where a stream's own bytes begin."""
    fork = state.config.fork
    return fork.point if fork is not None else START


class TieredLog(ABC):
    """One stream; `base` is where its own bytes begin, after those of the log it branched from."""

    __slots__ = ("base", "parent", "state", "tail")

    def __init__(self, state: StreamState, parent: TieredLog | None) -> None:
        self.state = state
        self.parent = parent
        self.base = own_start(state)
        self.tail = MemoryLog(state.tail)

    @property
    def stored_bytes(self) -> int:
        return self.state.tail.bytes - max(self.base.bytes, self.state.retained_from.bytes)

    def read(self, start: Position, limit: Position, bytes_max: int) -> Range | ColdRead | None:
        return read_across_forks(self._read_one, start, limit, bytes_max)

    def seek(
        self, start: Position, messages_max: int | None, bytes_max: int | None
    ) -> Position | None:
        if self.parent is None or start.bytes >= self.base.bytes:
            return self.tail.seek(start, messages_max, bytes_max)
        if bytes_max is not None:
            return None
        return seek_across_forks(self._seek_one, start, messages_max)

    def reclaim(self, retained_from: Position) -> None:
        """No reader or fork needs what comes before `retained_from`: free its memory."""
        self.tail.reclaim(retained_from)

    def is_tier_boundary(self, position: Position) -> bool:
        log: TieredLog | None = self
        while log is not None:
            if position in (log.base, log.tail.base):
                return True
            log = log.parent
        return False

    def _owner(self, start: Position, limit: Position) -> tuple[TieredLog, Position]:
        """The log that has what is at `start`, and where that ends: at `limit` or at a branch."""
        owner, end = self, limit
        while start.bytes < owner.base.bytes and owner.parent is not None:
            end = min(end, owner.base)
            owner = owner.parent
        return owner, end

    def _seek_one(self, start: Position, messages_max: int | None) -> SeekResult:
        owner, end = self._owner(start, PAST_EVERY_TAIL)
        return owner.tail.seek(start, messages_max, None), end

    def _read_one(
        self, start: Position, limit: Position, bytes_max: int
    ) -> Range | ColdRead | None:
        owner, end = self, limit
        if start.bytes < self.base.bytes:
            owner, end = self._owner(start, limit)
        if start.bytes >= owner.tail.base.bytes:
            return clip(owner.tail.read(start, end, bytes_max), end)
        # Up to where memory begins now. A worker runs this later, when more may have left memory;
        # what it was asked for is on the disk either way.
        cold_read = owner.cold_read(start, min(end, owner.tail.base), bytes_max)
        return lambda: clip(cold_read(), end)

    @abstractmethod
    def cold_read(self, start: Position, limit: Position, bytes_max: int) -> ColdRead:
        """A read of what is on disk before `limit`."""
