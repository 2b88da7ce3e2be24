"""The forks of one stream, and the first position of it that any of them still needs.

A fork reads what it inherited from its source, so a source keeps what its forks need. Each fork
says so once, and again when it needs less; the least of all is at the top of a heap. Nothing here
looks at all forks, however many there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headrace.protocol.offsets import Position

if TYPE_CHECKING:
    from headrace.engine.stream_runtime import Stream

STALE_MIN: Final = 1000  # below this a rebuild costs more than it saves


class Branches:
    __slots__ = ("_forks", "_heap", "_needs")

    def __init__(self) -> None:
        self._forks: dict[Stream, None] = {}  # in the order they were made
        self._needs: dict[int, Position] = {}
        # Outdated entries stay until they come up: those that `_needs` does not confirm.
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
        """Note what a fork needs of its source, None if nothing; whether that is news."""
        fork_id = fork.state.id
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
        """The least that any fork needs; None if none needs anything."""
        heap = self._heap
        while heap:
            position, fork_id = heap[0]
            if self._needs.get(fork_id) == position:
                return position
            heapq.heappop(heap)
        return None
