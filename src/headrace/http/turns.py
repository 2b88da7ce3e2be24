"""Turns: connections that sent more requests than there was time for go on in rotation.

A client may send thousands of requests in one packet. It gets TURN_SECS of the event loop, and
then waits in line behind every other connection with something left to do, while the loop serves
those that have nothing waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from headrace.clock import monotonic

TURN_SECS: Final = 0.001  # for one connection
ROUND_SECS: Final = 0.005  # for all that wait in line, before the loop does something else


class Turned(Protocol):
    def take_turn(self) -> None: ...

    def fail(self, what: str) -> None:
        """While an exception is handled that `take_turn` raised."""
        ...


class Turns:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: deque[Turned] = deque()

    def add(self, connection: Turned) -> None:
        self._line.append(connection)
        if len(self._line) == 1:
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        ends = monotonic() + ROUND_SECS
        for _ in range(len(self._line)):
            # Still in line while it takes its turn, so that a round is asked for once.
            connection = self._line[0]
            try:
                connection.take_turn()
            except Exception:
                connection.fail("a turn")
            self._line.popleft()
            if monotonic() > ends:
                break
        if self._line:
            self._loop.call_soon(self._round)
