"""Turns: connections with more to do than there was time for go on in rotation.

A client may send thousands of requests in one packet. It gets TURN_SECS of the event loop, and
then waits in line behind every other connection with something left to do. So do large answers,
which one append may bring to thousands of readers: a turn is one window of one of them. While
others are being served besides, those in line get a third of the loop's time.

A turn of its own does not bound what all connections get between two looks of the loop for events:
thousands of them may each have sent something that takes a millisecond to parse or to answer. So
when READS_SECS have gone into what connections sent, the rest of them wait in line, too. The clock
is read from the READS_BETWEEN_LOOKS-th read on: single requests are shorter than that.

This shares the loop between clients. Single pieces of long work are cut by `engine.slices`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from headrace.clock import monotonic

TURN_SECS: Final = 0.001  # for one connection
ROUND_SECS: Final = 0.005  # for all that wait in line, before the loop does something else
READS_SECS: Final = 0.05  # for what comes in at once; 5,000 appends
READS_BETWEEN_LOOKS: Final = 8
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
        self.read_count = 0
        """Of all connections."""
        self.is_watched = False
        """Whether reads are timed until the loop looks for events again."""
        self._watched_from = 0.0
        self._in_round = False

    def add(self, connection: Turned) -> None:
        self._line.append(connection)
        self.is_waiting = True
        if len(self._line) == 1:
            self._loop.call_soon(self._round)

    def is_time_over(self) -> bool:
        """Whether what else came in has to wait in line; watched from the first call on."""
        now = monotonic()
        if self.is_watched:
            # Those in line have their own bound.
            return now - self._watched_from > READS_SECS and not self._in_round
        self.is_watched = True
        self._watched_from = now
        self._loop.call_soon(self._end_watch)
        return False

    def _end_watch(self) -> None:
        self.is_watched = False

    def _round(self) -> None:
        self._in_round = True
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
        self._in_round = False
        if self._line and self.is_contended:
            pause_secs = min(PAUSE_FACTOR * (monotonic() - begun), PAUSE_SECS_MAX)
            self._loop.call_later(pause_secs, self._round)
        elif self._line:
            self._loop.call_soon(self._round)
        self.is_contended = False
        self.is_waiting = bool(self._line)
