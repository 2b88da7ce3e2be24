"""The `__registry__` stream: which streams exist, announced in order and kept short.

When most of its messages are history, the registry announces every live stream once more and
drops what came before, so it never holds more than about twice what it must say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.engine.tails import Stream
from headrace.protocol.json_mode import wire_bytes
from headrace.protocol.offsets import Position
from headrace.protocol.registry import announce_created, announce_deleted
from headrace.protocol.stream import Appended, StreamState

STALE_MESSAGES_MIN = 1000  # below this a compaction costs readers more than it saves


class Registry:
    def __init__(self, stream: Stream, live_count: int) -> None:
        self.stream = stream
        self.floor: Position = stream.state.floor
        self._live_count = live_count

    def created(self, state: StreamState) -> Appended:
        self._live_count += 1
        return self._change([announce_created(state)])

    def deleted(self, name: str) -> Appended:
        self._live_count -= 1
        return self._change([announce_deleted(name)])

    def withdrawn(self, name: str) -> Appended:
        """A stream that was announced and is not there after all."""
        return self._change([announce_deleted(name)])

    @property
    def is_due(self) -> bool:
        """Whether history outweighs what the registry has to say."""
        kept = self.stream.state.tail.messages - self.floor.messages
        return kept > 2 * self._live_count + STALE_MESSAGES_MIN

    def restated(self, live: Iterable[StreamState]) -> Appended:
        """Every live stream once more: everything before this change can go."""
        return self._change([announce_created(state) for state in live])

    def _change(self, messages: Sequence[bytes]) -> Appended:
        start = self.stream.state.tail
        data = wire_bytes(messages) if messages else b""
        end = Position(start.messages + len(messages), start.bytes + len(data))
        lengths = tuple(len(message) + 1 for message in messages)
        return Appended(start, end, data, lengths, False, None, None)
