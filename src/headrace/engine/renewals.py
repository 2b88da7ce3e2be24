"""Sliding windows over a restart: when each stream was last used, written down now and then.

A write carries its time with it. What reads renew is kept in memory and written down in rounds, a
share of the streams at each tick, so that no read waits for a disk and a stream that is read all
the time is written once a round. A crash forgets what reads renewed since the last round; an
orderly stop forgets nothing.

A window runs while the server runs. Each round also says when it was, so that the time in which
nobody could read counts for nothing: a server that was down for a day does not come back only to
find everything expired, and one that restarts often does not keep everything for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

import msgspec

from headrace.engine.expiry_queue import ExpiryQueue
from headrace.engine.tails import Stream
from headrace.storage.base import Storage

PREFIX: Final = "renewals/"
ALIVE: Final = "alive"
ROUND_MS: Final = 10_000
STREAMS_PER_TICK: Final = 5_000  # a few milliseconds of the loop
_encode = msgspec.msgpack.encode


class Renewals:
    def __init__(self, expiring: ExpiryQueue, storage: Storage) -> None:
        self._expiring = expiring
        self._storage = storage
        self._written: dict[int, int] = {}
        self._round_ms = 0
        self._left: list[int] = []

    def resume(
        self, documents: dict[str, bytes], now_ms: int, set_aside: Collection[int] = ()
    ) -> None:
        """Give every window what was left of it when the server was last known to run.

        What is known of streams that are set aside is left as it is.
        """
        known = {name: msgspec.msgpack.decode(value, type=int) for name, value in documents.items()}
        alive_ms = known.pop(ALIVE, 0)
        written = {int(name, 16): touched_ms for name, touched_ms in known.items()}
        self._written = {id: written[id] for id in written if id not in set_aside}
        streams = self._expiring.sliding()
        for stream in streams:
            state = stream.state
            state.touched_ms = max(state.touched_ms, self._written.get(state.id, 0))
            alive_ms = max(alive_ms, state.touched_ms)
        for stream in streams:
            touched_ms = stream.state.touched_ms + max(0, now_ms - alive_ms)
            stream.state.touched_ms = min(touched_ms, now_ms)

    def tick(self, now_ms: int) -> None:
        """Go on with the round, or begin the next when it is time."""
        if self._left:
            self._write(now_ms, islice(self._take(), STREAMS_PER_TICK))
        elif now_ms - self._round_ms >= ROUND_MS and (self._expiring or self._written):
            self._round_ms = now_ms
            self._left = self._everything()
            self._write(now_ms, islice(self._take(), STREAMS_PER_TICK))

    def finish(self, now_ms: int) -> None:
        """An orderly stop: the round that leaves nothing to forget."""
        if self._expiring or self._written:
            self._write(now_ms, self._everything())

    def _everything(self) -> list[int]:
        gone = [id for id in self._written if self._expiring.get(id) is None]
        return [*gone, *(stream.state.id for stream in self._expiring.sliding())]

    def _take(self) -> Iterable[int]:
        while self._left:
            yield self._left.pop()

    def _write(self, now_ms: int, ids: Iterable[int]) -> None:
        documents: dict[str, bytes | None] = {PREFIX + ALIVE: _encode(now_ms)}
        for id in ids:
            stream = self._expiring.get(id)
            if stream is None:
                if self._written.pop(id, None) is not None:
                    documents[_name(id)] = None
                continue
            touched_ms = _touched_ms(stream, now_ms)
            if touched_ms != self._written.get(id):
                self._written[id] = touched_ms
                documents[_name(id)] = _encode(touched_ms)
        self._storage.keep(documents)


def _touched_ms(stream: Stream, now_ms: int) -> int:
    """A stream that is being followed is in use until now."""
    return now_ms if stream.readers else stream.state.touched_ms


def _name(id: int) -> str:
    return f"{PREFIX}{id:016x}"
