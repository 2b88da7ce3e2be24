"""Expiry: a sliding window that reads and writes renew, or an absolute deadline."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lifetime:
    """What a stream was created with; at most one of the two is set."""

    ttl_secs: int | None = None
    expires_at_ms: int | None = None

    def deadline_ms(self, touched_ms: int) -> int | None:
        """When a stream last touched at `touched_ms` expires; None is never."""
        if self.ttl_secs is not None:
            return touched_ms + self.ttl_secs * 1000
        return self.expires_at_ms

    def is_over(self, touched_ms: int, now_ms: int) -> bool:
        deadline_ms = self.deadline_ms(touched_ms)
        return deadline_ms is not None and now_ms >= deadline_ms

    def inherit(self, requested: Lifetime) -> Lifetime:
        """The lifetime of a fork: its own wish, else its source's."""
        return self if requested == FOREVER else requested


FOREVER = Lifetime()
