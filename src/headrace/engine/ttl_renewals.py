"""Sliding windows across restarts: when each stream was last used, stored periodically.

What renews a window is kept in memory and stored in rounds, a share of the streams at each
tick, so that no read waits for a disk and a stream that is read all the time is written once a
round. A crash forgets what reads renewed since the last round; an orderly stop forgets nothing. A
write is never forgotten: each round says which write was the last it knew, and a stream that has
another was used since.

A window runs while the server runs, and by the steady clock: what is stored are milliseconds
in which the server ran, counted over all runs. The time in which no client could read counts for
nothing, and neither does a wall clock that was set, while the server ran or while it did not.

What cannot be read counts as not known. A window then begins anew, so that no stream expires too
early; and if the time of running is lost, it goes on from the last use of any stream.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Final, TypeVar

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
T = TypeVar("T")
LeaveOut = Callable[[str, Exception], object]
"""Takes the name of a document that cannot be read, and the reason."""


class StoredWindow(msgspec.Struct, array_like=True, frozen=True):
    """A stream's last use, in milliseconds of uptime, and its last write at that time."""

    touched_ms: int
    written_ms: int


class Renewals:
    def __init__(self, expiring: ExpiryQueue, storage: Storage, clock: SteadyClock) -> None:
        self._expiring = expiring
        self._storage = storage
        self._clock = clock
        self._written: dict[int, StoredWindow] = {}
        self._old: list[str] = []
        self._shift_ms = 0  # from the steady clock to milliseconds of running
        self._round_ms = 0
        self._left: list[int] = []

    def resume(
        self,
        documents: dict[str, bytes],
        old: dict[str, bytes],
        set_aside: Collection[int],
        leave_out: LeaveOut,
    ) -> None:
        """Give every window what was left of it when the server was last known to run.

        What is known of streams that are set aside is left as it is.
        """
        now_ms = self._clock.now_ms()
        before = _decode_all(old, OLD_PREFIX, int, leave_out)
        ran = _decode_all(
            {RAN: documents.pop(RAN)} if RAN in documents else {}, PREFIX, int, leave_out
        )
        windows = _windows(_decode_all(documents, PREFIX, StoredWindow, leave_out))
        last_use_ms = max((window.touched_ms for window in windows.values()), default=now_ms)
        ran_ms = ran.get(RAN, before.pop(OLD_ALIVE, last_use_ms))
        self._shift_ms = ran_ms - now_ms
        kept = {f"{id:016x}" for id in set_aside}
        self._old = [OLD_PREFIX + name for name in old if name not in kept]
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
            # Another write than the one this round knew: it was used since, at a time that nobody
            # stored. The end of the last run is the latest it can have been.
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

    def _window(self, stream: Stream, now_ms: int) -> StoredWindow:
        """A stream that is being followed is in use until now."""
        state = stream.state
        touched_ms = now_ms if stream.readers else state.touched_ms
        return StoredWindow(touched_ms + self._shift_ms, state.written_ms)


def _decode_all(
    documents: dict[str, bytes], prefix: str, type: type[T], leave_out: LeaveOut
) -> dict[str, T]:
    """Those that can be decoded."""
    found: dict[str, T] = {}
    for name, value in documents.items():
        try:
            found[name] = _decode(value, type=type)
        except (msgspec.MsgspecError, ValueError) as error:
            leave_out(prefix + name, error)
    return found


def _windows(named: dict[str, StoredWindow]) -> dict[int, StoredWindow]:
    return {int(name, 16): window for name, window in named.items()}


def _name(id: int) -> str:
    return f"{PREFIX}{id:016x}"
