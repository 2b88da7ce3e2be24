"""Turns: connections with more to do than there was time for go on in rotation.

A client may send thousands of requests in one packet. It gets TURN_SECS of the event loop, and
then waits in line behind every other connection with something left to do. So do large answers,
which one append may bring to thousands of readers: a turn is one window of one of them. While
others are being served besides, those in line get a third of the loop's time.

Before requests are run they are parsed, and thousands of clients may each send a large read at
once. What is longer than a small request is parsed while the loop has spent less than ROUND_SECS
on such reads since it last looked for events; after that its connection waits in line, too.

This shares the loop between clients. Single pieces of long work are cut by `engine.slices`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from headrace.clock import monotonic

TURN_SECS: Final = 0.001  # for one connection
ROUND_SECS: Final = 0.005  # for all that wait in line, before the loop does something else
PAUSE_FACTOR: Final = 2  # times as long as a round took, where others had requests meanwhile
PAUSE_SECS_MAX: Final = 0.1


class Turned(Protocol):
    def take_turn(self) -> None: ...

    def fail(self, what: str) -> None:
        """While an exception is handled that `take_turn` raised."""
        ...


class Turns:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: deque[Turned] = deque()
        self.is_waiting = False
        """Whether anybody is in line; an attribute, because every request looks at it."""
        self.is_contended = False
        """Set by a connection that runs a request while others wait for a turn."""
        self._reading_secs = 0.0

    def add(self, connection: Turned) -> None:
        self._line.append(connection)
        self.is_waiting = True
        if len(self._line) == 1:
            self._loop.call_soon(self._round)

    @property
    def is_reading_time_used_up(self) -> bool:
        return self._reading_secs > ROUND_SECS

    def count_reading(self, secs: float) -> None:
        """Time that went into parsing, and running, a large read."""
        if not self._reading_secs:
            self._loop.call_soon(self._begin_reading)
        self._reading_secs += secs

    def _begin_reading(self) -> None:
        self._reading_secs = 0.0

    def _round(self) -> None:
        self._begin_reading()
        begun = monotonic()
        ends = begun + ROUND_SECS
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
        if self._line and self.is_contended:
            pause_secs = min(PAUSE_FACTOR * (monotonic() - begun), PAUSE_SECS_MAX)
            self._loop.call_later(pause_secs, self._round)
        elif self._line:
            self._loop.call_soon(self._round)
        self.is_contended = False
        self.is_waiting = bool(self._line)
