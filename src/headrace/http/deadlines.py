"""Deadlines of things that all wait equally long: one timer for the whole queue."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final, Protocol

from headrace.faults import Faultable, hand_over, internal_fault

FIRED_PER_TURN: Final = 200  # each may answer a request, 20 microseconds; others want the loop, too


class Expiring(Faultable, Protocol):
    def on_deadline(self) -> None: ...


class DeadlineQueue:
    """Calls `on_deadline` on each member `timeout_secs` after it was added, unless removed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_secs: float) -> None:
        self._loop = loop
        self._timeout_secs = timeout_secs
        self._members: OrderedDict[Expiring, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: Expiring) -> None:
        due = self._loop.time() + self._timeout_secs
        # In the order of deadlines, since all wait equally long. One that waits already has to be
        # removed before: it would keep its place, and hold up those behind it.
        self._members[member] = due
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._fire)

    def remove(self, member: Expiring) -> None:
        self._members.pop(member, None)

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for _ in range(FIRED_PER_TURN):
            if not self._members:
                return
            member, due = next(iter(self._members.items()))
            if due > now:
                self._timer = self._loop.call_at(due, self._fire)
                return
            del self._members[member]
            try:
                member.on_deadline()
            except Exception:
                hand_over(member.on_fault, internal_fault("a deadline"))
        self._timer = self._loop.call_later(0, self._fire)
