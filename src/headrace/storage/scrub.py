"""Scrubbing: reading everything that is stored again, slowly, to find rot before a client does.

What is found is logged and counted; nothing is stopped for it, and other streams are served as
before. A read of the damaged place is refused all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from headrace.clock import Clock
from headrace.errors import HeadraceError, Unavailable
from headrace.storage.base import Check, CheckResult, Storage

logger = logging.getLogger(__name__)

PASS_SECS_MIN: Final = 3600  # a directory that is read in a minute is not read every minute


class Scrub:
    """Passes over a storage, one after the other, at a bounded rate; `tick` it once a second.

    `snapshots` are the checks of what the storage keeps and only the engine has a list of.
    """

    def __init__(
        self,
        storage: Storage,
        snapshots: Callable[[], Iterator[Check]],
        bytes_per_sec: int,
        clock: Clock,
    ) -> None:
        self._storage = storage
        self._snapshots = snapshots
        self._bytes_per_sec = bytes_per_sec
        self._clock = clock
        self._allowance = 0
        self._checks: Iterator[Check] = iter(())
        self._next_pass_at = clock.monotonic()
        self._is_busy = False
        self._is_stopped = bytes_per_sec == 0
        self.scrubbed_bytes = 0
        self.damage_found = 0

    def tick(self) -> None:
        # It may be negative: a part is read whole, and paid off by the seconds after it. What was
        # not used is not saved up, or an idle hour would be followed by a burst.
        self._allowance = min(self._allowance + self._bytes_per_sec, self._bytes_per_sec)
        self._run_next()

    def stop(self) -> None:
        self._is_stopped = True

    def _run_next(self) -> None:
        if self._is_busy or self._is_stopped or self._allowance <= 0:
            return
        check = next(self._checks, None) or self._begin_pass()
        if check is not None:
            self._is_busy = True
            self._storage.run_in_thread(check, self._checked)

    def _begin_pass(self) -> Check | None:
        now = self._clock.monotonic()
        if now < self._next_pass_at:
            return None
        self._next_pass_at = now + PASS_SECS_MIN
        self._checks = chain(self._storage.checks(), self._snapshots())
        return next(self._checks, None)

    def _checked(self, result: CheckResult | HeadraceError) -> None:
        self._is_busy = False
        if isinstance(result, Unavailable):  # no descriptor was free: the next pass looks again
            found = CheckResult(0, [])
        else:
            found = CheckResult(0, [result]) if isinstance(result, HeadraceError) else result
        self._allowance -= found.data_bytes
        self.scrubbed_bytes += found.data_bytes
        self.damage_found += len(found.damage)
        facts = {"stream": found.stream} if found.stream else {}
        for damage in found.damage:
            logger.error("the scrub found damage: %s", damage.detail, extra=facts)
        self._run_next()
