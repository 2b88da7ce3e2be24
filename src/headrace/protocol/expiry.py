"""Expiry: a sliding window that reads and writes renew, or an absolute deadline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Moment(NamedTuple):
    """Now, on the clock that people read and may set, and on one that only runs."""

    wall_ms: int
    steady_ms: int


@dataclass(frozen=True, slots=True)
class Lifetime:
    """What a stream was created with; at most one of the two is set."""

    ttl_secs: int | None = None
    expires_at_ms: int | None = None

    def deadline_ms(self, touched_ms: int) -> int | None:
        """When a stream last touched at `touched_ms` expires; None is never.

        A window's end is on the steady clock, as `touched_ms` is; an absolute one on the wall's.
        """
        if self.ttl_secs is not None:
            return touched_ms + self.ttl_secs * 1000
        return self.expires_at_ms

    def left_ms(self, touched_ms: int, now: Moment) -> int | None:
        """How long a stream has to live yet, if it is not used; None is for ever."""
        if self.ttl_secs is not None:
            return touched_ms + self.ttl_secs * 1000 - now.steady_ms
        return None if self.expires_at_ms is None else self.expires_at_ms - now.wall_ms

    def is_over(self, touched_ms: int, now: Moment) -> bool:
        left_ms = self.left_ms(touched_ms, now)
        return left_ms is not None and left_ms <= 0

    def inherit(self, requested: Lifetime) -> Lifetime:
        """The lifetime of a fork: its own wish, else its source's."""
        return self if requested == FOREVER else requested


FOREVER = Lifetime()
