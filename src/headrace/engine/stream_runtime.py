"""A stream at run time: its state, its log, and the listeners at its tail.

`tail` is the end of the log, `visible` what readers may see: tail >= visible, always. Readers and
watchers are called when `visible` moves; they hold no task and no future.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.engine.fork_tree import ForkSet
from headrace.errors import HeadraceError
from headrace.protocol.expiry import Moment
from headrace.protocol.offsets import Position
from headrace.protocol.stream import Snapshot, StreamState
from headrace.storage.base import Log

if TYPE_CHECKING:
    from headrace.engine.feed import Feed


class TailListener(Protocol):
    """A listener at the tail of a stream: a live reader or a subscription."""

    def on_advance(self, stream: Stream) -> None:
        """More is visible, or the stream was closed."""
        ...

    def on_gone(self, stream: Stream) -> None:
        """The stream was deleted or has expired."""
        ...

    def on_fault(self, fault: HeadraceError) -> None:
        """One of the calls above raised: give up, and answer the client with the fault."""
        ...


class Stream:
    """One stream, as the engine holds it."""

    __slots__ = (
        "creation_durable",
        "feed",
        "fork_count",
        "fork_set",
        "held",
        "log",
        "read_only",
        "readers",
        "source",
        "state",
        "visible",
        "visible_closed",
        "visible_snapshot",
        "visible_trim_offset",
        "watchers",
    )

    def __init__(self, state: StreamState, log: Log, source: Stream | None = None) -> None:
        self.state = state
        self.log = log
        self.source = source
        self.fork_count = 0
        self.feed: Feed | None = None  # that of its bucket, once the stream is listed there
        self.fork_set: ForkSet | None = None
        self.creation_durable = False  # its creation is durable, so readers may know of it
        self.read_only = False  # for clients: the registry writes itself
        self.visible: Position = state.tail
        self.visible_closed = False
        self.visible_trim_offset: Position = state.trim_offset
        self.visible_snapshot: Snapshot | None = state.snapshot
        # Positions that readers hold, and how many hold each: trim offsets only rise, so the
        # first is the least.
        self.held: dict[Position, int] | None = None
        # Ordered sets: they leave in any order, and are called in the order they came.
        # Live readers keep a sliding TTL from running out; watchers do not.
        self.readers: dict[TailListener, None] | None = None
        self.watchers: dict[TailListener, None] | None = None

    def add_fork(self, fork: Stream) -> None:
        if self.fork_set is None:
            self.fork_set = ForkSet()
        self.fork_set.add(fork)
        self.fork_count += 1

    def drop_fork(self, fork: Stream) -> None:
        assert self.fork_set is not None, "a stream knows its forks"
        self.fork_set.discard(fork)
        self.fork_count -= 1

    def keep_for(self, fork: Stream | None) -> None:
        """A fork is set aside, so its needs are unknown: keep everything, and never remove this.

        `fork` is None if it could not even be recovered, and is then only counted.
        """
        if fork is None:
            self.fork_count += 1
        elif self.fork_set is not None:
            self.fork_set.discard(fork)
        if self.held is None:
            self.held = {}
        self.held[self.state.retained_from] = self.held.get(self.state.retained_from, 0) + 1

    @property
    def depth(self) -> int:
        """How many streams this one was forked from, one from the other."""
        depth, source = 0, self.source
        while source is not None:
            depth, source = depth + 1, source.source
        return depth

    def attach_reader(self, reader: TailListener) -> None:
        if self.readers is None:
            self.readers = {}
        self.readers[reader] = None

    def detach_reader(self, reader: TailListener, steady_ms: int) -> None:
        """Reading went on until now, so the sliding TTL starts again from here."""
        self.readers = _without(self.readers, reader)
        self.state.touched_ms = max(self.state.touched_ms, steady_ms)

    def attach_watcher(self, watcher: TailListener) -> None:
        if self.watchers is None:
            self.watchers = {}
        self.watchers[watcher] = None

    def detach_watcher(self, watcher: TailListener) -> None:
        self.watchers = _without(self.watchers, watcher)

    def listeners(self) -> list[TailListener]:
        """A copy, because listeners come and go while others are being called."""
        return [*(self.readers or ()), *(self.watchers or ())]

    def has_listener(self, listener: TailListener) -> bool:
        readers, watchers = self.readers, self.watchers
        return bool((readers and listener in readers) or (watchers and listener in watchers))

    def is_expired(self, now: Moment) -> bool:
        state = self.state
        if not state.is_expired(now):
            return False
        return not (self.readers and state.config.lifetime.ttl_secs)


def _without(
    listeners: dict[TailListener, None] | None, listener: TailListener
) -> dict[TailListener, None] | None:
    if listeners:
        listeners.pop(listener, None)
    return listeners or None
