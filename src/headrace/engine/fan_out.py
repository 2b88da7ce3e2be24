"""Calls the listeners of a stream that grew or was removed.

Theory of operation. A batch of commits marks streams in `due`, and `call_listeners` calls the
listeners of those. A call carries no data: a listener reads on from its own position up to what is
visible when it is called. So a stream that grew a hundred times in one batch is announced once, and
one that grows while its listeners are being called is announced once more after that. (Every append
once called every listener: 250 writers to a stream with 9,900 subscriptions or 400 event streams
held the event loop for 0.4 to 0.9 s.)

    inline    few listeners: now, in the caller's frame, up to INLINE_MAX calls in all
    a round   more listeners: all who listen now, a slice at a time (`engine.slices`)

Invariants:

- A stream has at most one round under way. What happens to it meanwhile is kept in `_rounds` and
  announced in the next round, so that every listener is called for growth before it is called for
  the end.
- A listener that leaves before its call is not called.
- A call that makes another stream grow only marks it: calls do not nest, however long the chain.
- A round ends after one pass and waits for its next turn behind the rounds of other streams, so a
  stream that grows all the time does not keep the others waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Final

from headrace.engine.slices import Slices
from headrace.engine.stream_runtime import Stream, TailListener
from headrace.faults import hand_over, internal_fault

logger = logging.getLogger(__name__)

GREW: Final = 1  # more is visible, or the stream was closed
LEFT: Final = 2  # deleted or expired

INLINE_MAX: Final = 32  # half a millisecond, for one batch of commits
CALLS_PER_STEP: Final = 16  # a third of a millisecond
SHORT_ROUND_MAX: Final = 500  # listeners; ten milliseconds, which pass longer rounds by


class FanOut:
    def __init__(self) -> None:
        self.slices: Slices | None = None
        """Set by the owner of an event loop; without one, every listener is called inline."""
        self.due: dict[Stream, int] = {}
        """What happened to which stream; complete for one batch when `call_listeners` is called."""
        self._rounds: dict[Stream, int] = {}  # under way, and what happened since they began
        self._is_calling = False

    def call_listeners(self) -> None:
        if self._is_calling:
            return  # the loop below sees it
        self._is_calling = True
        try:
            self._call_due()
        finally:
            self._is_calling = False

    def _call_due(self) -> None:
        due, rounds, room = self.due, self._rounds, INLINE_MAX
        while due:
            stream = next(iter(due))
            event = due.pop(stream)
            if stream in rounds:
                rounds[stream] |= event
                continue
            count = len(stream.readers or ()) + len(stream.watchers or ())
            if self.slices is not None and count > room:
                self._begin_round(self.slices, stream, event, count)
                continue
            # For the whole batch, not for each stream: a thousand streams with a listener each are
            # as much work as one with a thousand.
            room -= count
            for listener in stream.listeners():
                self._wake(stream, listener, event)

    def _begin_round(self, slices: Slices, stream: Stream, event: int, count: int) -> None:
        self._rounds[stream] = 0
        slices.run_later(
            self._round(stream, event),
            partial(self._round_failed, stream),
            is_short=count <= SHORT_ROUND_MAX,
        )

    def _round(self, stream: Stream, event: int) -> Iterator[None]:
        listeners = stream.listeners()
        for first in range(0, len(listeners), CALLS_PER_STEP):
            for listener in listeners[first : first + CALLS_PER_STEP]:
                self._wake(stream, listener, event)
            yield
        self._end_round(stream)

    def _end_round(self, stream: Stream) -> None:
        event = self._rounds.pop(stream)
        if event:
            self.due[stream] = self.due.get(stream, 0) | event
        self.call_listeners()

    def _round_failed(self, stream: Stream, error: Exception) -> None:
        """A defect of this module, as every call is guarded: the other listeners are called now."""
        logger.error("calling the listeners of a stream failed", exc_info=error)
        self._rounds[stream] |= GREW
        self._end_round(stream)

    def _wake(self, stream: Stream, listener: TailListener, event: int) -> None:
        if event & GREW and stream.has_listener(listener):
            try:
                listener.on_advance(stream)
            except Exception:
                hand_over(listener.on_fault, internal_fault("waking a reader"))
        if event & LEFT and stream.has_listener(listener):
            try:
                listener.on_gone(stream)
            except Exception:
                hand_over(listener.on_fault, internal_fault("telling a reader of a deletion"))
