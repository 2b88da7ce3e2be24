"""Reclaiming: bytes below the trim offset are returned to storage once nothing needs them.

A stream's bytes below its trim offset may still be needed by forks that began before it, and by a
reader (a bootstrap) that holds an earlier position. `needed_from` is the least of all three. When
it rises, the bytes below are committed as reclaimed; storage then frees them when it can. The rise
may allow the same in the stream's own source: `fork_tree` has the whole picture.

    of a live stream: retained_from <= needed_from <= visible trim offset <= trim offset

Only the visible, that is durable, trim offset counts: a trim that a power cut takes back must still
find its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.engine.stream_runtime import Stream
from headrace.protocol.buckets import is_own
from headrace.protocol.offsets import Position
from headrace.storage.base import Reclaimed
from headrace.storage.tiered_log import own_start

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
        assert stream.held is not None, "a released position was held"
        stream.held[held] -= 1
        if not stream.held[held]:
            del stream.held[held]
            self.give_back(stream)

    def give_back(self, stream: Stream) -> None:
        """A floor has moved, a fork or a reader has gone: return what nobody needs any more."""
        self._release(stream)
        self.tell_sources(stream)

    def tell_sources(self, stream: Stream) -> None:
        """A fork needs less: so may its source, and the source of that."""
        fork = stream
        while (source := fork.source) is not None and _note_need(source, fork):
            self._release(source)
            fork = source

    def recover(self, streams: Sequence[Stream]) -> None:
        """At the start, with `streams` in the order of creation: each is visited once."""
        for stream in reversed(streams):
            state = stream.state
            if stream.source is not None or state.deleted or state.retained_from != state.floor:
                self._engine.aside.attempt(stream, self._recover)

    def _recover(self, stream: Stream) -> None:
        self._release(stream)
        if stream.source is not None:
            _note_need(stream.source, stream)

    def _release(self, stream: Stream) -> None:
        engine, state = self._engine, stream.state
        if engine.streams.get(state.name) is not stream:
            return  # it is gone, and everything with it
        kept = needed_from(stream)
        freed_bytes = kept.bytes - max(state.retained_from.bytes, own_start(state).bytes)
        if freed_bytes <= 0:
            return
        state.retained_from = kept
        if not is_own(state.name):
            engine.stored_bytes -= freed_bytes
        engine.storage.commit(stream.log, Reclaimed(state, kept, freed_bytes), None)


def needed_from(stream: Stream) -> Position:
    """The first position that anybody may still read in this stream's log."""
    state = stream.state
    needed = state.tail if state.deleted else stream.visible_floor
    if stream.held:
        needed = min(needed, next(iter(stream.held)))
    inherited = stream.fork_set.first_needed() if stream.fork_set is not None else None
    return needed if inherited is None else min(needed, inherited)


def _note_need(source: Stream, fork: Stream) -> bool:
    """Tell a source what a fork of it needs; whether that is news."""
    if source.fork_set is None:
        return False  # the fork is set aside: it could not be recovered
    needed = needed_from(fork)
    is_inherited = needed.bytes < own_start(fork.state).bytes
    return source.fork_set.need(fork, needed if is_inherited else None)
