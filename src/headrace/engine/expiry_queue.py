"""Which streams may have expired: a heap of deadlines that tolerates renewals.

A renewal does not touch the heap. A stream that comes up with a later deadline goes back in; one
that was removed leaves only its number behind, until that comes up or there are too many.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from headrace.engine.tails import Stream

STALE_MIN = 1000  # below this a rebuild costs more than it saves


class ExpiryQueue:
    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._streams: dict[int, Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def get(self, stream_id: int) -> Stream | None:
        return self._streams.get(stream_id)

    def sliding(self) -> list[Stream]:
        """The streams whose window use renews."""
        return [s for s in self._streams.values() if s.state.config.lifetime.ttl_secs is not None]

    def add(self, stream: Stream) -> None:
        state = stream.state
        deadline_ms = state.config.lifetime.deadline_ms(state.touched_ms)
        if deadline_ms is not None:
            self._streams[state.id] = stream
            heapq.heappush(self._heap, (deadline_ms, state.id))

    def discard(self, stream: Stream) -> None:
        self._streams.pop(stream.state.id, None)
        if len(self._heap) > 2 * len(self._streams) + STALE_MIN:
            self._heap = [entry for entry in self._heap if entry[1] in self._streams]
            heapq.heapify(self._heap)

    def over(self, now_ms: int) -> Iterator[Stream]:
        """The streams whose time is over and that nobody has removed yet: costs as many steps."""
        heap, places = self._heap, [0]
        while places:
            place = places.pop()
            if place < len(heap) and heap[place][0] <= now_ms:
                places += (2 * place + 1, 2 * place + 2)
                stream = self._streams.get(heap[place][1])
                if stream is not None and stream.is_expired(now_ms):
                    yield stream

    def is_due(self, now_ms: int) -> bool:
        """Whether `pop_over` has something to look at."""
        return bool(self._heap) and self._heap[0][0] <= now_ms

    def pop_over(self, now_ms: int, streams_max: int) -> list[Stream]:
        """Those whose time is over of up to `streams_max` streams that may be."""
        over: list[Stream] = []
        renewed: list[Stream] = []
        while self.is_due(now_ms) and len(over) + len(renewed) < streams_max:
            stream = self._streams.pop(heapq.heappop(self._heap)[1], None)
            if stream is not None:
                (over if stream.is_expired(now_ms) else renewed).append(stream)
        for stream in renewed:
            if stream.readers:
                stream.state.touched_ms = now_ms
            self.add(stream)
        return over
