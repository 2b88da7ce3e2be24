"""A reader of Server-Sent Events that checks their framing while it reads."""

from __future__ import annotations

import json
from collections import deque
from types import TracebackType
from typing import Any, NamedTuple

from headrace.protocol.sse import EventDecoder, ReceivedEvent
from headrace.testing.raw_http import EndOfConnection, RawConnection, request_bytes


class EventBatch(NamedTuple):
    """A data event, where there was one, and the control event that followed it."""

    data: str | None
    control: dict[str, Any]


class EventStream:
    """One SSE response; use it as a context manager."""

    def __init__(self, connection: RawConnection, target: str, **headers: str) -> None:
        self.connection = connection
        connection.send(request_bytes("GET", target, b"", **headers))
        self.head = connection.head()
        assert self.head.status == 200, (self.head.status, self.head.headers)
        self._chunks = connection.chunks()
        self._decoder = EventDecoder()
        self._events: deque[ReceivedEvent] = deque()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.connection.close()

    def event(self) -> ReceivedEvent | None:
        """The next event; None is the clean end of the response."""
        while not self._events:
            chunk = next(self._chunks, None)
            if chunk is None:
                return None
            self._events.extend(self._decoder.feed(chunk))
        return self._events.popleft()

    def batch(self) -> EventBatch:
        """The next control event with the data event before it."""
        batch = self._next_batch()
        if batch is None:
            raise EndOfConnection("the event stream ended")
        return batch

    def rest(self) -> list[EventBatch]:
        """All batches until the response ends cleanly."""
        batches = []
        while (batch := self._next_batch()) is not None:
            batches.append(batch)
        return batches

    def _next_batch(self) -> EventBatch | None:
        event = self.event()
        data = None
        if event is not None and event.type == "data":
            data, event = event.data, self.event()
            assert event is not None, "a data event is followed by its control event"
        if event is None:
            return None
        assert event.type == "control", event
        return EventBatch(data, json.loads(event.data))


def open_events(port: int, target: str, **headers: str) -> EventStream:
    """Follow `target`, which names a stream and `live=sse`."""
    connection = RawConnection(port)
    try:
        return EventStream(connection, target, **headers)
    except BaseException:
        connection.close()
        raise
