"""Which streams may have expired: heaps of deadlines that tolerate renewals.

A renewal does not touch its heap. A stream that comes up with a later deadline goes back in; one
that was removed leaves only its number behind, until that comes up or there are too many. Windows
end by the steady clock and absolute deadlines by the wall clock, so there is a heap for each.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, KeysView

from headrace.engine.stream_runtime import Stream
from headrace.protocol.expiry import Moment

STALE_MIN = 1000  # below this a rebuild costs more than it saves

Heap = list[tuple[int, int]]
"""Deadlines, and the ids of the streams they are of."""


class ExpiryQueue:
    def __init__(self) -> None:
        self._windows: Heap = []
        self._absolute: Heap = []
        self._streams: dict[int, Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def entries(self) -> int:
        """How many deadlines are kept, those of streams that are gone included."""
        return len(self._windows) + len(self._absolute)

    def get(self, stream_id: int) -> Stream | None:
        return self._streams.get(stream_id)

    def ids(self) -> KeysView[int]:
        """The ids of the streams that have a deadline."""
        return self._streams.keys()

    def sliding(self) -> list[Stream]:
        """The streams whose window use renews."""
        return [s for s in self._streams.values() if s.state.config.lifetime.ttl_secs is not None]

    def add(self, stream: Stream) -> None:
        state = stream.state
        lifetime = state.config.lifetime
        deadline_ms = lifetime.deadline_ms(state.touched_ms)
        if deadline_ms is not None:
            self._streams[state.id] = stream
            heap = self._absolute if lifetime.ttl_secs is None else self._windows
            heapq.heappush(heap, (deadline_ms, state.id))

    def discard(self, stream: Stream) -> None:
        self._streams.pop(stream.state.id, None)
        if self.entries > 2 * len(self._streams) + STALE_MIN:
            for heap in (self._windows, self._absolute):
                heap[:] = [entry for entry in heap if entry[1] in self._streams]
                heapq.heapify(heap)

    def rebuild(self) -> None:
        """Windows were given other beginnings, perhaps earlier ones: put them in order again."""
        streams = self.sliding()
        self._windows.clear()
        for stream in streams:
            self.add(stream)

    def over(self, now: Moment) -> Iterator[Stream]:
        """The expired streams that are not removed yet; one step for each."""
        yield from self._over(self._windows, now.steady_ms, now)
        yield from self._over(self._absolute, now.wall_ms, now)

    def _over(self, heap: Heap, now_ms: int, now: Moment) -> Iterator[Stream]:
        places = [0]
        while places:
            place = places.pop()
            if place < len(heap) and heap[place][0] <= now_ms:
                places += (2 * place + 1, 2 * place + 2)
                stream = self._streams.get(heap[place][1])
                if stream is not None and stream.is_expired(now):
                    yield stream

    def is_due(self, now: Moment) -> bool:
        """Whether `pop_over` has candidates."""
        return _is_due(self._windows, now.steady_ms) or _is_due(self._absolute, now.wall_ms)

    def pop_over(self, now: Moment, streams_max: int) -> list[Stream]:
        """The expired ones among at most `streams_max` candidates, removed from the queue."""
        over, examined = self._pop_over(self._windows, now.steady_ms, now, streams_max)
        more, _ = self._pop_over(self._absolute, now.wall_ms, now, streams_max - examined)
        return over + more

    def _pop_over(
        self, heap: Heap, now_ms: int, now: Moment, streams_max: int
    ) -> tuple[list[Stream], int]:
        """And how many candidates were examined."""
        over: list[Stream] = []
        renewed: list[Stream] = []
        while _is_due(heap, now_ms) and len(over) + len(renewed) < streams_max:
            stream = self._streams.pop(heapq.heappop(heap)[1], None)
            if stream is not None:
                (over if stream.is_expired(now) else renewed).append(stream)
        for stream in renewed:
            # A stream that is being followed is in use, however long ago its last read began.
            if stream.readers:
                stream.state.touched_ms = now.steady_ms
            self.add(stream)
        return over, len(over) + len(renewed)


def _is_due(heap: Heap, now_ms: int) -> bool:
    return bool(heap) and heap[0][0] <= now_ms
