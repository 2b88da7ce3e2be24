"""Removing streams: gone for writers at once, for readers when that is durable.

A stream that forks still need stays, deleted, until the last of them goes: `fork_tree` has the
states and the order in which frames reach storage.

Between the decision and its durability a name has no stream in `Engine.streams`, but one in
`pending_removals`: a 404 or a new stream of that name rests on the removal, so the answer waits for
it (`Engine.when_durable`). Two streams of one name have different ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.engine.stream_runtime import Stream
from headrace.protocol.buckets import is_bucketed
from headrace.protocol.expiry import Moment
from headrace.storage.base import Change, Removed, committing, ignore

if TYPE_CHECKING:
    from headrace.engine.engine import Engine

FORKS_REMOVED_AT_ONCE_MAX: Final = 1000  # expired forks that one request to their source takes away


class Removal:
    """The part of the engine that takes streams out of it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def remove(self, stream: Stream, reply: Callable[[Change], None]) -> None:
        self._remove(stream, reply, expired=False)

    def expire(self, stream: Stream) -> None:
        self._remove(stream, ignore, expired=True)

    def remove_expired_forks(self, stream: Stream) -> bool:
        """Remove the forks of a deleted stream, and so itself, if all have expired; whether so.

        The clock decides, not housekeeping: a client that sees the last fork expire may create the
        source again at once. A stream with more than FORKS_REMOVED_AT_ONCE_MAX forks stays until
        housekeeping has removed most of them, so that one request does not pay for all.
        """
        expired = _all_expired(stream, self._engine.now())
        for fork in expired:
            if not fork.state.deleted:
                self.expire(fork)
        return bool(expired)

    def _remove(self, stream: Stream, reply: Callable[[Change], None], *, expired: bool) -> None:
        with committing(self._engine.storage):
            self._take_away(stream, reply, expired=expired)

    def _take_away(self, stream: Stream, reply: Callable[[Change], None], *, expired: bool) -> None:
        engine, state = self._engine, stream.state
        state.deleted = True
        engine.expiring.discard(stream)
        change = Removed(state, whole=not stream.fork_count)
        followers: list[Stream] = []
        if change.whole:
            engine.pending_removals[state.name] = stream
            followers = self._release(stream)
        # A commit may answer at once, and the client's next request must find everything done. The
        # stream is committed before the sources it held, so that no crash leaves a fork without
        # its source.
        if is_bucketed(state.name):
            for left in (stream, *followers):
                engine.buckets.leave(left, expired=expired)
        else:
            engine.registry.deleted(state.name)
        engine.storage.commit(stream.log, change, (stream, change, reply))
        for source in followers:
            # Its name is free from now on; a reply that says so must wait until that is durable.
            engine.pending_removals[source.state.name] = source
            gone = Removed(source.state, whole=True)
            engine.storage.commit(source.log, gone, (source, gone, ignore))
        if not change.whole:
            # Clients cannot read it any more, so it needs less of its own source.
            engine.reclaimer.update_sources(stream)
            return
        kept = (followers[-1] if followers else stream).source
        if kept is not None:
            engine.reclaimer.reclaim(kept)

    def _release(self, stream: Stream) -> list[Stream]:
        """Take a stream out; deleted sources whose last fork it was follow it."""
        followers: list[Stream] = []
        leaving = stream
        while True:
            self._take_out(leaving)
            source = leaving.source
            if source is None:
                return followers
            source.drop_fork(leaving)
            if source.fork_count or not source.state.deleted:
                return followers
            followers.append(source)
            leaving = source

    def _take_out(self, stream: Stream) -> None:
        engine, name = self._engine, stream.state.name
        if engine.streams.get(name) is not stream:
            return  # superseded: the name is another's, and these bytes are not counted
        del engine.streams[name]
        engine.stored.release_stream(stream)

    def supersede(self, stream: Stream) -> None:
        """Finish the removal of a stream whose name a newer one has, as recovery found.

        In acid the two may be in different shards (a fork is in its source's), whose transactions
        are independent: the newer creation may be durable and the removal not.
        """
        engine = self._engine
        stream.state.deleted = True
        engine.expiring.discard(stream)  # its expiry would take the younger one away
        engine.stored.release_stream(stream)
        whole = not stream.fork_count
        engine.storage.commit(stream.log, Removed(stream.state, whole=whole), None)
        if whole and stream.source is not None:
            stream.source.drop_fork(stream)

    def finish(self) -> None:
        """Complete a cascade that a crash cut between a fork's removal and its source's."""
        for stream in list(self._engine.streams.values()):
            if stream.state.deleted and not stream.fork_count:
                self._engine.aside.attempt(stream, self._finish)

    def _finish(self, stream: Stream) -> None:
        if self._engine.streams.get(stream.state.name) is stream:
            for left in (stream, *self._release(stream)):
                change = Removed(left.state, whole=True)
                self._engine.storage.commit(left.log, change, None)


def _all_expired(stream: Stream, now: Moment) -> list[Stream]:
    """The forks of a stream and theirs, those further down first; none if any is still needed."""
    found: list[Stream] = []
    pending = [stream]
    while pending:
        source = pending.pop()
        if source.fork_count != len(source.fork_set or ()):
            return []  # a fork that is set aside may still need it
        for fork in source.fork_set or ():
            is_live = not fork.state.deleted and not fork.is_expired(now)
            if is_live or len(found) == FORKS_REMOVED_AT_ONCE_MAX:
                return []
            found.append(fork)
            pending.append(fork)
    found.reverse()
    return found
