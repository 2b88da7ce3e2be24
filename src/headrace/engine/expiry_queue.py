"""Which streams may have expired: a heap of deadlines that tolerates renewals.

A renewal does not touch the heap. A stream that comes up with a later deadline goes back in.
"""

from __future__ import annotations

import heapq

from headrace.engine.tails import Stream


class ExpiryQueue:
    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Stream]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, stream: Stream) -> None:
        state = stream.state
        deadline_ms = state.config.lifetime.deadline_ms(state.touched_ms)
        if deadline_ms is not None:
            heapq.heappush(self._heap, (deadline_ms, state.id, stream))

    def pop_over(self, now_ms: int, streams_max: int) -> list[Stream]:
        """Up to `streams_max` streams whose time is over."""
        over: list[Stream] = []
        renewed: list[Stream] = []
        while self._heap and self._heap[0][0] <= now_ms and len(over) < streams_max:
            stream = heapq.heappop(self._heap)[2]
            if stream.state.deleted:
                continue
            (over if stream.is_expired(now_ms) else renewed).append(stream)
        for stream in renewed:
            if stream.readers:
                stream.state.touched_ms = now_ms
            self.add(stream)
        return over
