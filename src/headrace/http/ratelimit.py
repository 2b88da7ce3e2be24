"""Rate limits: a token bucket per subject, for a bounded number of subjects."""

from __future__ import annotations

import math
from collections import OrderedDict

from headrace.clock import Clock
from headrace.errors import RateLimited

SUBJECTS_MAX = 100_000  # ~150 bytes each; the one not seen for longest is forgotten first


class RateLimiter:
    def __init__(self, clock: Clock, per_sec: float, burst: float) -> None:
        self._clock = clock
        self._per_sec = per_sec
        self._burst = max(1.0, burst or per_sec)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def admit(self, subject: str) -> None:
        """Take one token from the subject's bucket, or raise RateLimited."""
        now = self._clock.monotonic()
        tokens, seen = self._buckets.pop(subject, (self._burst, now))
        tokens = min(self._burst, tokens + (now - seen) * self._per_sec)
        refused = tokens < 1
        self._buckets[subject] = (tokens if refused else tokens - 1, now)
        if len(self._buckets) > SUBJECTS_MAX:
            self._buckets.popitem(last=False)
        if refused:
            raise RateLimited(max(1, math.ceil((1 - tokens) / self._per_sec)))
