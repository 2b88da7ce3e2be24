"""Removing streams: gone for writers at once, for readers when that is durable.

A stream that forks still need stays, deleted, until the last of them goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.engine.tails import Stream
from headrace.protocol.buckets import is_bucketed, is_own
from headrace.storage.base import Change, Removed, ignore

if TYPE_CHECKING:
    from headrace.engine.engine import Engine


class Removal:
    """The part of the engine that takes streams out of it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def remove(self, stream: Stream, reply: Callable[[Change], None]) -> None:
        self._remove(stream, reply, expired=False)

    def expire(self, stream: Stream) -> None:
        self._remove(stream, ignore, expired=True)

    def is_let_go(self, stream: Stream) -> bool:
        """Whether all forks of a deleted stream have expired by now; then they and it are gone."""
        now_ms = self._engine.clock.now_ms()
        if not stream.branches or any(_is_needed(fork, now_ms) for fork in stream.branches):
            return False
        self._expire_forks(stream)
        return True

    def _expire_forks(self, stream: Stream) -> None:
        for fork in list(stream.branches or ()):
            self._expire_forks(fork)
            if not fork.state.deleted:
                self.expire(fork)

    def _remove(self, stream: Stream, reply: Callable[[Change], None], *, expired: bool) -> None:
        engine, state = self._engine, stream.state
        state.deleted = True
        engine.expiring.discard(stream)
        change = Removed(state, whole=not stream.forks)
        followers: list[Stream] = []
        if change.whole:
            engine.leaving[state.name] = stream
            followers = self._release(stream)
        # A commit may answer at once, and what is asked next must find everything done. The
        # stream goes before the sources it held, so that a fork never outlives its source.
        if is_bucketed(state.name):
            for left in (stream, *followers):
                engine.buckets.leave(left, expired=expired)
        else:
            engine.registry.deleted(state.name)
        engine.storage.commit(stream.log, change, (stream, change, reply))
        for source in followers:
            # Its name is free from now on, and whoever is told so must be told for certain.
            engine.leaving[source.state.name] = source
            gone = Removed(source.state, whole=True)
            engine.storage.commit(source.log, gone, (source, gone, ignore))
        if stream.source is not None:
            engine.space.give_back(stream.source)

    def _release(self, stream: Stream) -> list[Stream]:
        """Take a stream out; deleted sources whose last fork it was follow it."""
        engine = self._engine
        del engine.streams[stream.state.name]
        if not is_own(stream.state.name):
            engine.stored_bytes -= stream.log.stored_bytes
        source = stream.source
        if source is None:
            return []
        source.drop_fork(stream)
        if source.forks or not source.state.deleted:
            return []
        return [source, *self._release(source)]

    def supersede(self, stream: Stream) -> None:
        """A younger stream has the name, so this one's deletion was under way: carry it out."""
        engine = self._engine
        stream.state.deleted = True
        if not is_own(stream.state.name):
            engine.stored_bytes -= stream.log.stored_bytes
        whole = not stream.forks
        engine.storage.commit(stream.log, Removed(stream.state, whole=whole), None)
        if whole and stream.source is not None:
            stream.source.drop_fork(stream)

    def finish(self) -> None:
        """A crash may have come between a fork's end and that of the source it held."""
        for stream in list(self._engine.streams.values()):
            is_held = self._engine.streams.get(stream.state.name) is stream
            if is_held and stream.state.deleted and not stream.forks:
                for left in (stream, *self._release(stream)):
                    change = Removed(left.state, whole=True)
                    self._engine.storage.commit(left.log, change, None)


def _is_needed(fork: Stream, now_ms: int) -> bool:
    """Whether clients still have a fork, or one of its own forks."""
    if not fork.state.deleted and not fork.is_expired(now_ms):
        return True
    return any(_is_needed(further, now_ms) for further in fork.branches or ())
