"""What the engine does about once a second, without a request: one job each.

    job                what it does                                            skipped
    expire             removes streams whose time is over, a bounded number;   while removals are
                       the rest in slices                                      refused
    renew              stores when sliding TTLs were last renewed, a share     while removals are
                       of the streams each time                                refused
    flush feeds        stores the changes that buckets' feeds have noted       while removals are
                                                                               refused
    storage            starts a checkpoint, retries a postponed batch          never
    reads              forgets the chunk that was read last                    never

The first three write. While storage refuses even removals (a full disk, a failed commit), what they
write would only wait, and more of it each second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.engine.expiry_queue import ExpiryQueue
from headrace.engine.feed import Feeds
from headrace.engine.maintenance import Maintenance
from headrace.engine.reads import Reads
from headrace.engine.stream_runtime import Stream
from headrace.engine.ttl_renewals import Renewals
from headrace.protocol.expiry import Moment
from headrace.storage.base import Storage

EXPIRED_AT_ONCE_MAX: Final = 250  # streams; five milliseconds of the loop


class Housekeeping:
    def __init__(
        self,
        storage: Storage,
        reads: Reads,
        feeds: Feeds,
        renewals: Renewals,
        expiring: ExpiryQueue,
        maintenance: Maintenance,
        now: Callable[[], Moment],
        remove_expired: Callable[[Stream], None],
    ) -> None:
        self._storage = storage
        self._reads = reads
        self._feeds = feeds
        self._renewals = renewals
        self._expiring = expiring
        self._maintenance = maintenance
        self._now = now
        self._remove_expired = remove_expired
        self._is_expiring = False  # the rest of them, in slices

    def run(self, streams_max: int = EXPIRED_AT_ONCE_MAX) -> int:
        """Every job once; the number of streams that expired."""
        expired_count = 0
        if self._can_remove():
            expired_count = self._expire(streams_max)
            self._expire_rest_later()
            self._renewals.tick()
            self._feeds.flush()
        self._storage.tick()
        self._reads.forget()
        return expired_count

    def _can_remove(self) -> bool:
        return self._storage.removal_refusal is None

    def _expire(self, streams_max: int) -> int:
        over = self._expiring.pop_over(self._now(), streams_max)
        for stream in over:
            self._remove_expired(stream)
        return len(over)

    def _expire_rest_later(self) -> None:
        """Without an event loop there are no slices: the next run goes on."""
        if self._maintenance.wake is not None and not self._is_expiring and self._is_any_due():
            self._is_expiring = True
            self._maintenance.add(self._expire_some)

    def _expire_some(self) -> bool:
        if self._can_remove():
            self._expire(EXPIRED_AT_ONCE_MAX)
        self._is_expiring = self._can_remove() and self._is_any_due()
        return self._is_expiring

    def _is_any_due(self) -> bool:
        return self._expiring.is_due(self._now())
