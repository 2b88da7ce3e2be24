"""Memory mode: nothing survives the process, and every commit is complete at once."""

from __future__ import annotations

import asyncio
import secrets
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from operator import sub
from typing import Any, Final, cast

from headrace.errors import HeadraceError
from headrace.protocol.offsets import START, Position
from headrace.protocol.stream import Appended, StreamState
from headrace.storage.base import (
    Change,
    Check,
    Commits,
    Created,
    Delayed,
    Documents,
    Entry,
    Failed,
    Lengths,
    Log,
    Range,
    Reclaimed,
    Recovered,
    Unrecovered,
    ignore,
)
from headrace.storage.blobs import Blobs, MemoryBlobs
from headrace.storage.fork_reads import (
    PAST_EVERY_TAIL,
    SeekResult,
    clip,
    read_across_forks,
    seek_across_forks,
)

_FIRST_ID_MIN: Final = 1 << 61  # past what a clock can lead to
_RANDOM_BITS: Final = 61


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
        self.ends.extend(islice(accumulate(lengths, initial=change.start.bytes), 1, None))

    def read(self, start: Position, limit: Position, bytes_max: int) -> Range | None:
        if self.parent is None:
            return self.read_own(start, limit, bytes_max)
        found = read_across_forks(self._read_one, start, limit, bytes_max)
        assert not callable(found), "memory is never cold"
        return found

    def seek(
        self, start: Position, messages_max: int | None, bytes_max: int | None
    ) -> Position | None:
        if self.parent is None or start.bytes >= self.base.bytes:
            return self.seek_own(start, messages_max, bytes_max)
        if bytes_max is not None:
            return None
        return seek_across_forks(self._seek_one, start, messages_max)

    def seek_own(
        self, start: Position, messages_max: int | None, bytes_max: int | None
    ) -> Position | None:
        """From this log alone."""
        if not self._is_boundary(start):
            return None
        first = start.messages - self.base.messages
        count = len(self.ends)
        if messages_max is not None:
            count = min(count, first + messages_max)
        if bytes_max is not None:
            fitting = bisect_right(self.ends, start.bytes + bytes_max)
            count = min(count, max(fitting, first + 1))
        if count == first:
            return start
        return Position(self.base.messages + count, self.ends[count - 1])

    def is_tier_boundary(self, position: Position) -> bool:
        return False

    def _owner(self, start: Position, limit: Position) -> tuple[MemoryLog, Position]:
        """The log that has what is at `start`, and where that ends: at `limit` or at a branch."""
        owner, end = self, limit
        while start.bytes < owner.base.bytes and owner.parent is not None:
            end = min(end, owner.base)
            owner = owner.parent
        return owner, end

    def _read_one(self, start: Position, limit: Position, bytes_max: int) -> Range | None:
        owner, end = self._owner(start, limit)
        return clip(owner.read_own(start, end, bytes_max), end)

    def _seek_one(self, start: Position, messages_max: int | None) -> SeekResult:
        owner, end = self._owner(start, PAST_EVERY_TAIL)
        return owner.seek_own(start, messages_max, None), end

    def read_own(self, start: Position, limit: Position, bytes_max: int) -> Range | None:
        """From this log alone."""
        if not self._is_boundary(start):
            return None
        first = start.messages - self.base.messages
        count = limit.messages - self.base.messages
        if limit.bytes - start.bytes > bytes_max:
            fitting = bisect_right(self.ends, start.bytes + bytes_max)
            count = min(count, max(fitting, first + 1))
        ends = self.ends[first:count]
        end = Position(start.messages + len(ends), ends[-1] if ends else start.bytes)
        offset = self.base.bytes
        data = bytes(memoryview(self.data)[start.bytes - offset : end.bytes - offset])
        return Range(end, data, _differences(start.bytes, ends))

    def _is_boundary(self, position: Position) -> bool:
        own = position.messages - self.base.messages
        if own > 0:
            return own <= len(self.ends) and self.ends[own - 1] == position.bytes
        return position == self.base

    def evict(self, byte_count: int) -> None:
        """Forget at most so many bytes from the front, up to a boundary."""
        count = bisect_right(self.ends, self.base.bytes + byte_count)
        if count:
            self.trim(Position(self.base.messages + count, self.ends[count - 1]))

    def reclaim(self, retained_from: Position) -> None:
        """No reader or fork needs what comes before `retained_from`, a boundary."""
        if retained_from.bytes > self.base.bytes:
            self.trim(retained_from)

    def trim(self, trim_offset: Position) -> None:
        count = bisect_right(self.ends, trim_offset.bytes)
        del self.data[: trim_offset.bytes - self.base.bytes]
        del self.ends[:count]
        self.base = trim_offset


def _differences(start: int, ends: Sequence[int]) -> Lengths:
    if len(ends) == 1:
        return (ends[0] - start,)
    return list(map(sub, ends, chain((start,), ends)))


class MemoryStorage:
    """Commits in the caller's own stack frame."""

    refusal: HeadraceError | None = None
    removal_refusal: HeadraceError | None = None

    def __init__(self) -> None:
        self.blobs: Blobs = MemoryBlobs()
        self.unrecovered: list[Unrecovered] = []
        # Nothing is remembered of the runs before this one but, in caches, their ETags: a random
        # place to begin keeps clear of theirs, whatever the clock says.
        self.last_id = _FIRST_ID_MIN + secrets.randbits(_RANDOM_BITS)

    def start(
        self,
        committed: Callable[[Sequence[Entry]], None],
        failed: Callable[[Sequence[Entry]], None],
        delayed: Delayed | None = None,
    ) -> None:
        self._committed = committed

    def recover(self) -> Iterable[Recovered]:
        return ()

    def take_documents(self) -> dict[str, bytes]:
        return {}

    def reserve_ids(self, id: int) -> None:
        """What was used elsewhere is as far away as what was used by other runs."""

    def new_log(self, state: StreamState, source: Log | None) -> MemoryLog:
        assert source is None or isinstance(source, MemoryLog), "a storage branches its own logs"
        return MemoryLog(state.tail, source)

    def commit(self, log: Log, change: Change, entry: Entry | None) -> None:
        own = cast(MemoryLog, log)
        if type(change) is Appended:
            own.append(change)
        elif type(change) is Created:
            own.append(change.initial)
        elif type(change) is Reclaimed:
            own.reclaim(change.retained_from)
        if entry is not None:
            self._committed((entry,))

    def when_durable(
        self, log: Log, done: Callable[[], None], failed: Callable[[HeadraceError], None] = ignore
    ) -> None:
        done()

    def put_documents(self, documents: Documents) -> None:
        """They are in memory already."""

    def when_documents_durable(self, done: Callable[[], None], failed: Failed) -> None:
        done()

    def run_in_thread(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        done(work())

    def checks(self) -> Iterator[Check]:
        return iter(())

    def fail(self, defect: Exception) -> None:
        """Memory is the only copy, so only the request that raised fails."""

    async def failed(self) -> None:
        await asyncio.Event().wait()

    def commits(self) -> Commits:
        return Commits()

    def tick(self) -> None:
        """Memory is bounded by the engine."""

    def close(self) -> None:
        """Nothing is held outside the process."""

    def abandon(self) -> None:
        """Nothing is held outside the process."""
