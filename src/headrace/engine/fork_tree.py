"""The forks of one stream, and the first position of it that any of them still needs.

Theory of operation, for this module, `removal` and `reclaim`. A fork copies nothing: it reads its
own log from the fork point on, and before that the log of its source, which may be a fork too. So

- a source outlives its forks: deleting a stream that has forks is a soft delete;
- a source keeps the bytes that a fork can still read, also below the source's own trim offset;
- what forks need is known without visiting them, as a stream may have a million forks.

    state          fork_count   in engine.streams   clients                bytes kept
    live           any          yes                 200                    from `needed_from` on
    soft-deleted   > 0          yes, `deleted`      410; PUT and fork 409  from `needed_from` on
    removed        0            no                  404, name is free      none

    live -> soft-deleted      DELETE or expiry with forks     frame: Removed(whole=False)
    live -> removed           DELETE or expiry without        frame: Removed(whole=True)
    soft-deleted -> removed   its last fork was removed, which may remove its own source, and so on
                              up the chain (`Removal._release`); or all its forks have expired, seen
                              when a client asks for it or by housekeeping

Needed positions. A fork reports to its source the first position it needs there, or None once its
own trim offset is past the fork point. Trim offsets only rise, so reports only rise. A min-heap has
the least one on top; an entry counts only if `_needs` confirms it, so a new report need not search
for the old one. A reader that holds a position (`Stream.held`) counts like a fork. When a report
rises, the source may reclaim bytes, so its own need may rise, and so on up (`Reclaimer`).

Crash order. The frames of one cascade go to storage fork first, then its source, and a fork and
its sources share one order of commits (the journal; in acid, the shard). After a crash a source may
therefore be left without forks, which `Removal.finish` completes at the next start, but a fork is
never left without its source. Bytes are reclaimed by durable (visible) trim offsets only.

Forks that recovery set aside are in `fork_count` but not in the ForkSet: nobody knows what they
need, so their source keeps everything and is not removed (`Stream.keep_for`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headrace.protocol.offsets import Position

if TYPE_CHECKING:
    from headrace.engine.stream_runtime import Stream

STALE_MIN: Final = 1000  # outdated heap entries; below this a rebuild costs more than it saves


class ForkSet:
    """The recovered forks of one stream, and what each needs of it."""

    __slots__ = ("_forks", "_heap", "_needs")

    def __init__(self) -> None:
        self._forks: dict[Stream, None] = {}  # an ordered set: in the order they were created
        self._needs: dict[int, Position] = {}  # the latest report of each fork, by its id
        # One entry per report. Those that `_needs` does not confirm are outdated and are dropped
        # when they reach the top.
        self._heap: list[tuple[Position, int]] = []

    def __len__(self) -> int:
        return len(self._forks)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._forks)

    def __contains__(self, fork: Stream) -> bool:
        return fork in self._forks

    def add(self, fork: Stream) -> None:
        self._forks[fork] = None

    def discard(self, fork: Stream) -> None:
        del self._forks[fork]
        self._needs.pop(fork.state.id, None)

    def need(self, fork: Stream, position: Position | None) -> bool:
        """Note what a fork needs of its source, None if nothing; whether it changed."""
        fork_id = fork.state.id
        # A fork that was removed meanwhile must not pin its source again.
        if fork not in self._forks or self._needs.get(fork_id) == position:
            return False
        if position is None:
            del self._needs[fork_id]
            return True
        self._needs[fork_id] = position
        if len(self._heap) > 2 * len(self._needs) + STALE_MIN:
            self._heap = [(needed, id) for id, needed in self._needs.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (position, fork_id))
        return True

    def first_needed(self) -> Position | None:
        """The first position that any fork needs; None if none needs any."""
        heap = self._heap
        while heap:
            position, fork_id = heap[0]
            if self._needs.get(fork_id) == position:
                return position
            heapq.heappop(heap)
        return None
