"""Memory mode: nothing survives the process, and every commit is complete at once."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from headrace.protocol.offsets import START, Position
from headrace.protocol.stream import Appended, StreamState
from headrace.storage.base import Change, Created, Entry, Lengths, Log, Range, Recovered, Trimmed


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

    def is_hot(self, start: Position) -> bool:
        return True

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

    def read(self, start: Position, limit: Position, bytes_max: int) -> Range | None:
        if not self._is_boundary(start):
            return None
        if start.bytes < self.base.bytes:
            return self._read_inherited(start, limit, bytes_max)
        first = start.messages - self.base.messages
        count = limit.messages - self.base.messages
        if limit.bytes - start.bytes > bytes_max:
            fitting = bisect_right(self.ends, start.bytes + bytes_max)
            count = min(count, max(fitting, first + 1))
        ends = self.ends[first:count]
        end = Position(self.base.messages + count, ends[-1] if ends else start.bytes)
        offset = self.base.bytes
        data = bytes(memoryview(self.data)[start.bytes - offset : end.bytes - offset])
        return Range(end, data, _differences(start.bytes, ends))

    def _read_inherited(self, start: Position, limit: Position, bytes_max: int) -> Range | None:
        """What was branched off, and what follows it here while there is room."""
        assert self.parent is not None, "read below the floor"
        found = self.parent.read(start, min(limit, self.base), bytes_max)
        if found is None:
            return None
        surplus = found.end.bytes - self.base.bytes
        if surplus > 0:
            # The branch cuts a message of the parent: here it ends at the cut.
            lengths = [*found.lengths[:-1], found.lengths[-1] - surplus]
            found = Range(self.base, found.data[:-surplus], lengths)
        room = bytes_max - len(found.data)
        if found.end != self.base or limit <= self.base or room <= 0:
            return found
        own = self.read(self.base, limit, room)
        if own is None or len(own.data) > room:
            return found
        return Range(own.end, found.data + own.data, [*found.lengths, *own.lengths])

    def lengths(self, start: Position, count: int) -> Lengths | None:
        if not self._is_boundary(start):
            return None
        found: list[int] = []
        while len(found) < count:
            part = self._own_lengths(start, count - len(found))
            if not part:
                break
            found += part
            start = Position(start.messages + len(part), start.bytes + sum(part))
        return found

    def _own_lengths(self, start: Position, count: int) -> Lengths:
        first = start.messages - self.base.messages
        if first >= 0:
            return _differences(start.bytes, self.ends[first : first + count])
        assert self.parent is not None, "read below the floor"
        part = list(self.parent._own_lengths(start, min(count, -first)))
        surplus = start.bytes + sum(part) - self.base.bytes
        if surplus > 0:
            part[-1] -= surplus
        return part

    def _is_boundary(self, position: Position) -> bool:
        own = position.messages - self.base.messages
        if own > 0:
            return own <= len(self.ends) and self.ends[own - 1] == position.bytes
        if position.bytes >= self.base.bytes:
            return position == self.base
        return self.parent is not None and self.parent._is_boundary(position)

    def trim(self, floor: Position) -> None:
        count = bisect_right(self.ends, floor.bytes)
        del self.data[: floor.bytes - self.base.bytes]
        del self.ends[:count]
        self.base = floor


def _differences(start: int, ends: Sequence[int]) -> Lengths:
    if len(ends) == 1:
        return (ends[0] - start,)
    return [end - begin for begin, end in zip(chain((start,), ends), ends, strict=False)]


class MemoryStorage:
    """Commits in the caller's own stack frame."""

    def start(self, committed: Callable[[Sequence[Entry]], None]) -> None:
        self._committed = committed

    def recover(self) -> Iterable[Recovered]:
        return ()

    def new_log(self, state: StreamState, source: Log | None) -> MemoryLog:
        assert source is None or isinstance(source, MemoryLog), "a storage branches its own logs"
        return MemoryLog(state.tail, source)

    def commit(self, log: Log, change: Change, entry: Entry | None) -> None:
        assert isinstance(log, MemoryLog), "a storage commits to its own logs"
        if type(change) is Appended:
            log.append(change)
        elif type(change) is Created:
            log.append(change.initial)
        elif type(change) is Trimmed:
            log.trim(change.floor)
        if entry is not None:
            self._committed((entry,))

    def settle(self, log: Log, done: Callable[[], None]) -> None:
        done()

    def run_cold(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        done(work())

    def close(self) -> None:
        """Nothing is held outside the process."""
