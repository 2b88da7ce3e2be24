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

from collections.abc import Callable, Mapping, Sequence

from headrace.engine.stored_bytes import StoredBytes
from headrace.engine.stream_runtime import Stream
from headrace.protocol.offsets import Position
from headrace.storage.base import Reclaimed, Storage
from headrace.storage.tiered_log import own_start

Attempt = Callable[[Stream, Callable[[Stream], None]], None]
"""Does a step for a stream that recovery found; sets the stream aside if that fails."""


class Reclaimer:
    def __init__(
        self, streams: Mapping[str, Stream], stored: StoredBytes, storage: Storage
    ) -> None:
        self._streams = streams
        self._stored = stored
        self._storage = storage

    def hold(self, stream: Stream) -> Position:
        """Keep what is readable now until `release`; returns the position it begins at."""
        # Held positions are recorded at the visible trim offset, which only rises: the dict stays
        # sorted, and its first key is the least.
        held = stream.visible_trim_offset
        if stream.held is None:
            stream.held = {}
        stream.held[held] = stream.held.get(held, 0) + 1
        return held

    def release(self, stream: Stream, held: Position) -> None:
        assert stream.held is not None, "a released position was held"
        stream.held[held] -= 1
        if not stream.held[held]:
            del stream.held[held]
            self.reclaim(stream)

    def reclaim(self, stream: Stream) -> None:
        """A trim offset has moved, or a fork or reader is gone: reclaim what nothing needs now."""
        self._reclaim(stream)
        self.update_sources(stream)

    def update_sources(self, stream: Stream) -> None:
        """A fork needs less: so may its source, and the source of that."""
        # Ends at the first source whose need does not change, usually at once: a chain of 64 forks
        # is walked only as far as it matters.
        fork = stream
        while (source := fork.source) is not None and _note_need(source, fork):
            self._reclaim(source)
            fork = source

    def recover(self, streams: Sequence[Stream], attempt: Attempt) -> None:
        """At the start, with `streams` in the order of creation: each is visited once."""
        # Forks before their sources, which are older: each source then knows what all of them need.
        for stream in reversed(streams):
            state = stream.state
            if (
                stream.source is not None
                or state.deleted
                or state.retained_from != state.trim_offset
            ):
                attempt(stream, self._recover)

    def _recover(self, stream: Stream) -> None:
        self._reclaim(stream)
        if stream.source is not None:
            _note_need(stream.source, stream)

    def _reclaim(self, stream: Stream) -> None:
        state = stream.state
        if self._streams.get(state.name) is not stream:
            return  # it was removed, with all its bytes
        kept = needed_from(stream)
        # Bytes before the fork point belong to the source, and are reclaimed there.
        freed_bytes = kept.bytes - max(state.retained_from.bytes, own_start(state).bytes)
        if freed_bytes <= 0:
            return
        state.retained_from = kept
        self._stored.release_of(stream, freed_bytes)
        self._storage.commit(stream.log, Reclaimed(state, kept, freed_bytes), None)


def needed_from(stream: Stream) -> Position:
    """The first position that anybody may still read in this stream's log."""
    state = stream.state
    # Clients of a deleted stream read nothing; its forks and held positions still may.
    needed = state.tail if state.deleted else stream.visible_trim_offset
    if stream.held:
        needed = min(needed, next(iter(stream.held)))
    inherited = stream.fork_set.first_needed() if stream.fork_set is not None else None
    return needed if inherited is None else min(needed, inherited)


def _note_need(source: Stream, fork: Stream) -> bool:
    """Report to a source what a fork of it needs; whether that changed."""
    if source.fork_set is None:
        return False  # the fork is set aside: it could not be recovered
    needed = needed_from(fork)
    is_inherited = needed.bytes < own_start(fork.state).bytes
    return source.fork_set.need(fork, needed if is_inherited else None)
