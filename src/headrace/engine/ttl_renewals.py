"""Sliding windows across restarts: when each stream was last used, stored periodically.

What renews a window is kept in memory and stored in rounds, a share of the streams at each
tick, so that no read waits for a disk and a stream that is read all the time is written once a
round. A crash forgets what reads renewed since the last round; an orderly stop forgets nothing. A
write is never forgotten: each round says which write was the last it knew, and a stream that has
another was used since.

A window runs while the server runs, and by the steady clock: what is stored are milliseconds
in which the server ran, counted over all runs. The time in which no client could read counts for
nothing, and neither does a wall clock that was set, while the server ran or while it did not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

import msgspec

from headrace.clock import SteadyClock
from headrace.engine.expiry_queue import ExpiryQueue
from headrace.engine.stream_runtime import Stream
from headrace.storage.base import Storage

PREFIX: Final = "windows/"
RAN: Final = "ran"
OLD_PREFIX: Final = "renewals/"  # of servers that went by the wall clock
OLD_ALIVE: Final = "alive"
ROUND_MS: Final = 10_000
STREAMS_PER_TICK: Final = 5_000  # a few milliseconds of the loop
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class Window(msgspec.Struct, array_like=True, frozen=True):
    """A stream's last use, in milliseconds of uptime, and its last write at that time."""

    touched_ms: int
    written_ms: int


class Renewals:
    def __init__(self, expiring: ExpiryQueue, storage: Storage, clock: SteadyClock) -> None:
        self._expiring = expiring
        self._storage = storage
        self._clock = clock
        self._written: dict[int, Window] = {}
        self._old: list[str] = []
        self._shift_ms = 0  # from the steady clock to milliseconds of running
        self._round_ms = 0
        self._left: list[int] = []

    def resume(
        self,
        documents: dict[str, bytes],
        old: dict[str, bytes],
        set_aside: Collection[int] = (),
    ) -> None:
        """Give every window what was left of it when the server was last known to run.

        What is known of streams that are set aside is left as it is.
        """
        now_ms = self._clock.now_ms()
        before = {name: _decode(value, type=int) for name, value in old.items()}
        ran_ms = before.pop(OLD_ALIVE, now_ms)
        if RAN in documents:
            ran_ms = _decode(documents.pop(RAN), type=int)
        self._shift_ms = ran_ms - now_ms
        kept = {f"{id:016x}" for id in set_aside}
        self._old = [OLD_PREFIX + name for name in old if name not in kept]
        windows = {int(name, 16): _decode(value, type=Window) for name, value in documents.items()}
        self._written = {id: windows[id] for id in windows if id not in set_aside}
        for stream in self._expiring.sliding():
            state = stream.state
            touched_ms = self._last_use(stream, before.get(f"{state.id:016x}"), ran_ms)
            state.touched_ms = min(touched_ms, ran_ms) - self._shift_ms
        self._expiring.rebuild()

    def _last_use(self, stream: Stream, before: int | None, ran_ms: int) -> int:
        """In milliseconds of running; at the end of the last run, where nothing is known."""
        state = stream.state
        known = self._written.get(state.id)
        if known is not None:
            return known.touched_ms if known.written_ms == state.written_ms else ran_ms
        if self._old:  # the wall clock was the measure, of writes as of all else
            return state.written_ms if before is None else max(before, state.written_ms)
        return ran_ms

    def tick(self) -> None:
        """Go on with the round, or begin the next when it is time."""
        now_ms = self._clock.now_ms()
        if self._left:
            self._write(now_ms, islice(self._take(), STREAMS_PER_TICK))
        elif now_ms - self._round_ms >= ROUND_MS and (self._expiring or self._written):
            self._round_ms = now_ms
            self._left = self._everything()
            self._write(now_ms, islice(self._take(), STREAMS_PER_TICK))

    def finish(self) -> None:
        """An orderly stop: the round that leaves nothing to forget."""
        if self._expiring or self._written:
            self._write(self._clock.now_ms(), self._everything())

    def _everything(self) -> list[int]:
        # Set operations, because these may be a million; what is fixed is passed over later.
        known = self._expiring.ids()
        return [*(self._written.keys() - known), *known]

    def _take(self) -> Iterable[int]:
        while self._left:
            yield self._left.pop()

    def _write(self, now_ms: int, ids: Iterable[int]) -> None:
        documents: dict[str, bytes | None] = {PREFIX + RAN: _encode(now_ms + self._shift_ms)}
        for id in ids:
            stream = self._expiring.get(id)
            if stream is None:
                if self._written.pop(id, None) is not None:
                    documents[_name(id)] = None
                continue
            if stream.state.config.lifetime.ttl_secs is None:
                continue
            window = self._window(stream, now_ms)
            if window != self._written.get(id):
                self._written[id] = window
                documents[_name(id)] = _encode(window)
        if not self._left and self._old:
            # Every stream has been stored again since.
            documents.update(dict.fromkeys(self._old))
            self._old = []
        self._storage.put_documents(documents)

    def _window(self, stream: Stream, now_ms: int) -> Window:
        """A stream that is being followed is in use until now."""
        state = stream.state
        touched_ms = now_ms if stream.readers else state.touched_ms
        return Window(touched_ms + self._shift_ms, state.written_ms)


def _name(id: int) -> str:
    return f"{PREFIX}{id:016x}"
