"""The feed of a bucket: which of its streams changed, up to which offset, in order.

The feed is the bucket's own stream, so it is read, followed and kept like any other. Changes are
noted as they become visible and stored together a moment later: a stream that changes all the
time appears once in each of these moments. Noting costs the same however many streams there are,
and so does following. What is kept has a bound; a reader that falls behind further gets an error,
and lists the bucket again.

After a crash, what was noted but not stored is announced once more: every stream that was
written to since shortly before the feed was. A change may be reported twice, but is never lost.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

import orjson

from headrace.clock import Clock
from headrace.engine.internal_append import announce, trim
from headrace.engine.stream_runtime import Stream
from headrace.limits import Limits
from headrace.protocol.buckets import ids_of
from headrace.storage.base import Storage

KEPT_MESSAGES: Final = 100_000  # at least; at most three times as many
# How much later than its own change a feed may be written, clocks that were set back included.
SLACK_MS: Final = 60_000
FLUSHED_AT_ONCE: Final = 1000  # messages of all feeds; a few milliseconds of the loop


class Feeds:
    """The feeds that have something to write down, and when they do.

    With the next sweep; if someone waits at a feed, in a moment: `prompt` has `flush` called then.
    """

    def __init__(self, storage: Storage, clock: Clock, limits: Limits) -> None:
        self.storage = storage
        self.clock = clock
        self.limits = limits
        self.prompt: Callable[[], object] | None = None
        self._due: deque[Feed] = deque()
        self._is_prompted = False

    def due(self, feed: Feed) -> None:
        self._due.append(feed)
        if feed.stream.readers:
            self._ask_for_flush()

    def _ask_for_flush(self) -> None:
        if self.prompt is not None and not self._is_prompted:
            self._is_prompted = True
            self.prompt()

    def flush(self) -> None:
        """Write down what was noted; of very much, the rest follows when it is prompted."""
        self._is_prompted = False
        room = FLUSHED_AT_ONCE if self.prompt is not None else sys.maxsize
        while self._due and room > 0:
            room -= self._due[0].flush(room)
            if not self._due[0].is_due:
                self._due.popleft()
        if self._due:
            self._ask_for_flush()


class Feed:
    __slots__ = ("_changed", "_feeds", "_mark", "is_due", "stream")

    def __init__(self, feeds: Feeds, stream: Stream) -> None:
        """`stream` is the bucket's own."""
        self.stream = stream
        self._feeds = feeds
        # Ordered: a change is announced where it was first noted.
        self._changed: dict[Stream, None] = {}
        self.is_due = False
        self._mark = stream.state.tail

    def note(self, stream: Stream) -> None:
        """More of `stream` is visible, or it is closed, new or gone."""
        self._changed[stream] = None
        if not self.is_due:
            self.is_due = True
            self._feeds.due(self)

    @property
    def noted(self) -> int:
        """Streams whose changes are not stored yet."""
        return len(self._changed)

    def flush(self, messages_max: int = FLUSHED_AT_ONCE) -> int:
        """Write down what was noted first, up to so much; how much it was."""
        if self.stream.state.deleted:
            self._changed.clear()
        changed = list(islice(self._changed, messages_max))
        for stream in changed:
            del self._changed[stream]
        self.is_due = bool(self._changed)
        if changed:
            self._announce(changed)
        return len(changed)

    def correct(self, streams: Iterable[Stream]) -> None:
        """Announce what a crash may have kept from being announced."""
        # The feed knows only when it was last written, not what it has noted since; so all that
        # changed after that is announced, with slack for clocks.
        since_ms = self.stream.state.written_ms - SLACK_MS
        late = [stream for stream in streams if stream.state.written_ms >= since_ms]
        if late:
            self._announce(late)

    def _announce(self, changed: Iterable[Stream]) -> None:
        feeds = self._feeds
        messages = [_message(stream) for stream in changed]
        announce(self.stream, messages, feeds.storage, feeds.clock.now_ms(), feeds.limits)
        tail = self.stream.state.tail
        if tail.messages - self._mark.messages >= KEPT_MESSAGES:
            trim_offset, self._mark = self._mark, tail
            if trim_offset > self.stream.state.trim_offset:
                trim(self.stream, trim_offset, feeds.storage)


def _message(stream: Stream) -> bytes:
    state = stream.state
    message: dict[str, object] = {"stream_id": ids_of(state.name)[1]}
    if state.deleted:
        message["deleted"] = True
    else:
        message["next_offset"] = stream.visible.token()
        message["created_at_ms"] = state.created_at_ms
        message["closed"] = stream.visible_closed
    return orjson.dumps(message)
