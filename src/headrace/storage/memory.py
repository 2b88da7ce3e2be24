"""Memory mode: nothing survives the process, and every commit is complete at once."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence

from headrace.protocol.offsets import START, Position
from headrace.protocol.stream import Appended
from headrace.storage.base import Entry, Log


class MemoryLog:
    """One stream's bytes in one buffer, and where each of its messages ends.

    `base` is where this log begins: everything before it is in `parent` (a fork), or was trimmed.
    """

    __slots__ = ("base", "data", "ends", "parent")

    def __init__(self, base: Position = START, parent: MemoryLog | None = None) -> None:
        self.base = base
        self.parent = parent
        self.data = bytearray()
        self.ends = array("Q")

    @property
    def stored_bytes(self) -> int:
        return len(self.data)

    def append(self, change: Appended) -> None:
        self.data += change.data
        lengths = change.lengths
        if len(lengths) == 1:
            self.ends.append(change.end.bytes)
            return
        end = change.start.bytes
        for length in lengths:
            end += length
            self.ends.append(end)

    def read(self, start_bytes: int, end_bytes: int) -> bytes:
        base = self.base.bytes
        if start_bytes >= base:
            return bytes(memoryview(self.data)[start_bytes - base : end_bytes - base])
        assert self.parent is not None, "read below the floor"
        inherited = self.parent.read(start_bytes, min(end_bytes, base))
        if end_bytes <= base:
            return inherited
        return inherited + memoryview(self.data)[: end_bytes - base]

    def is_boundary(self, position: Position) -> bool:
        own = position.messages - self.base.messages
        if own > 0:
            return own <= len(self.ends) and self.ends[own - 1] == position.bytes
        if position.bytes >= self.base.bytes:
            return position == self.base
        return self.parent is not None and self.parent.is_boundary(position)

    def after(self, messages: int) -> Position:
        own = messages - self.base.messages
        if own > 0:
            return Position(messages, self.ends[own - 1])
        if own == 0 or self.parent is None:
            return self.base
        return self.parent.after(messages)

    def chunk_end(self, start: Position, end: Position, bytes_max: int) -> Position:
        if end.bytes - start.bytes <= bytes_max:
            return end
        limit = start.bytes + bytes_max
        if start.bytes < self.base.bytes and limit < self.base.bytes:
            assert self.parent is not None, "read below the floor"
            return min(self.parent.chunk_end(start, self.base, bytes_max), self.base)
        count = bisect_right(self.ends, limit)
        if count:
            last = Position(self.base.messages + count, self.ends[count - 1])
            if last.bytes > start.bytes:
                return last
        elif start.bytes < self.base.bytes:
            return self.base
        return min(self.after(start.messages + 1), end)

    def trim(self, floor: Position) -> int:
        count = bisect_right(self.ends, floor.bytes)
        given_back = floor.bytes - self.base.bytes
        del self.data[:given_back]
        del self.ends[:count]
        self.base = floor
        return given_back

    def branch(self, point: Position) -> MemoryLog:
        return MemoryLog(point, self)


class MemoryStorage:
    """Commits in the caller's own stack frame."""

    def start(self, committed: Callable[[Sequence[Entry]], None]) -> None:
        self._committed = committed

    def new_log(self) -> MemoryLog:
        return MemoryLog()

    def commit(self, log: Log, change: Appended, entry: Entry) -> None:
        log.append(change)
        self._committed((entry,))

    def close(self) -> None:
        """Nothing is held outside the process."""
