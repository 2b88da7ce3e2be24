"""Space below the floor: given back once nobody needs it.

What a stream has before its floor may still be needed by forks that began further back, and by
whoever is reading it right now. When the last of them goes, storage is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.engine.tails import Stream
from headrace.protocol.buckets import is_own
from headrace.protocol.offsets import Position
from headrace.storage.base import Released
from headrace.storage.tailed import base_of

if TYPE_CHECKING:
    from headrace.engine.engine import Engine


class Space:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def hold(self, stream: Stream) -> Position:
        """Keep what is readable now until `let_go`; where that begins."""
        held = stream.visible_floor
        if stream.held is None:
            stream.held = {}
        stream.held[held] = stream.held.get(held, 0) + 1
        return held

    def let_go(self, stream: Stream, held: Position) -> None:
        assert stream.held is not None, "what is let go was held"
        stream.held[held] -= 1
        if not stream.held[held]:
            del stream.held[held]
            self.give_back(stream)

    def give_back(self, stream: Stream) -> None:
        """A floor has moved, a fork or a reader has gone: return what nobody needs any more."""
        owner: Stream | None = stream
        while owner is not None:
            self._release(owner)
            owner = owner.source

    def _release(self, stream: Stream) -> None:
        engine, state = self._engine, stream.state
        if engine.streams.get(state.name) is not stream:
            return  # it is gone, and everything with it
        kept = needed_from(stream)
        freed_bytes = kept.bytes - max(state.kept.bytes, base_of(state).bytes)
        if freed_bytes <= 0:
            return
        state.kept = kept
        if not is_own(state.name):
            engine.stored_bytes -= freed_bytes
        engine.storage.commit(stream.log, Released(state, kept, freed_bytes), None)


def needed_from(stream: Stream) -> Position:
    """The first position that anybody may still read in this stream's log."""
    state = stream.state
    needed: list[Position] = [
        state.tail if state.deleted else stream.visible_floor,
        *(stream.held or ()),
    ]
    for branch in stream.branches or ():
        wanted = needed_from(branch)
        if wanted.bytes < base_of(branch.state).bytes:
            needed.append(wanted)
    return min(needed)
