"""The `__registry__` stream: which streams exist, announced in order and kept short.

When most of its messages are history, the registry announces every live stream once more and
drops what came before, so it never holds more than about twice what it must say.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from headrace.engine.internal_append import announce, trim
from headrace.engine.stream_runtime import Stream
from headrace.errors import Corrupt
from headrace.protocol.buckets import is_bucketed
from headrace.protocol.offsets import Position
from headrace.protocol.registry import announce_created, announce_deleted, note_announced
from headrace.protocol.stream import StreamState

if TYPE_CHECKING:
    from headrace.engine.engine import Engine

logger = logging.getLogger(__name__)

STALE_MESSAGES_MIN = 1000  # below this a compaction costs readers more than it saves
COMPACTED_AT_ONCE = 500  # streams; one or two milliseconds of the loop


class Registry:
    """Records the streams of an engine in `stream`, which is itself one of them."""

    def __init__(self, engine: Engine, stream: Stream) -> None:
        self.stream = stream
        stream.read_only = True
        self._streams = engine.streams
        self._set_aside = engine.aside
        self._storage = engine.storage
        self._clock = engine.clock
        self._limits = engine.limits
        self._slices = engine.maintenance
        self._is_compacting = False
        self._trim_offset: Position = stream.state.trim_offset
        self._live_count = sum(1 for _ in self._live(self._streams))

    def created(self, state: StreamState) -> None:
        self._live_count += 1
        self._append([announce_created(state)])

    def deleted(self, name: str) -> None:
        self._live_count -= 1
        self._append([announce_deleted(name)])
        kept = self.stream.state.tail.messages - self._trim_offset.messages
        if kept > 2 * self._live_count + STALE_MESSAGES_MIN and not self._is_compacting:
            self._compact()

    def correct(self) -> None:
        """A crash may have come between a change and its announcement: make good for it."""
        live = {state.name: state for state in self._live(self._streams)}
        try:
            announced = self._announced()
        except (Corrupt, FileNotFoundError) as damage:
            # All it says can be said again.
            logger.error("the registry is damaged and is rewritten: %s", damage)
            self._compact()
            return
        gone = [name for name in announced - live.keys() if name not in self._set_aside]
        corrections = [announce_deleted(name) for name in sorted(gone)]
        corrections += [announce_created(live[name]) for name in sorted(live.keys() - announced)]
        if corrections:
            self._append(corrections)

    def _announced(self) -> set[str]:
        names: set[str] = set()
        state, log = self.stream.state, self.stream.log
        position = state.trim_offset
        while position != state.tail:
            part = log.read(position, state.tail, self._limits.read_chunk_bytes)
            if callable(part):
                part = part()
            assert part is not None, "the registry is read at its own boundaries"
            note_announced(names, part.data)
            position = part.end
        return names

    def _compact(self) -> None:
        """Say it all once more, a slice at a time; what came before goes when that is durable.

        What happens meanwhile is announced as ever. A crash in between leaves a registry that
        says some things twice.
        """
        self._is_compacting = True
        self._trim_offset = trim_offset = self.stream.state.tail
        names = iter(list(self._streams))

        def step() -> bool:
            part = list(islice(names, COMPACTED_AT_ONCE))
            messages = [announce_created(state) for state in self._live(part)]
            if messages:
                self._append(messages)
            if len(part) == COMPACTED_AT_ONCE:
                return True
            trim(self.stream, trim_offset, self._storage)
            self._is_compacting = False
            return False

        self._slices.add(step)

    def _live(self, names: Iterable[str]) -> Iterator[StreamState]:
        for name in names:
            stream = self._streams.get(name)
            if stream is None or stream is self.stream or is_bucketed(name):
                continue
            if not stream.state.deleted:
                yield stream.state

    def _append(self, messages: Sequence[bytes]) -> None:
        announce(self.stream, messages, self._storage, self._clock.now_ms(), self._limits)
