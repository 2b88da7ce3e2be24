"""A state that follows a stream: reads, folds, and begins again from a snapshot when it must."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from headrace.client.bootstrap import Bootstrap, bootstrap
from headrace.client.chunk_views import parse_json
from headrace.client.effects import Emit, Flow
from headrace.client.errors import BadAnswer
from headrace.client.requests import Target
from headrace.client.state import STATE_MEDIA_TYPE, Change, State
from headrace.client.stream_reading import Chunk, Live, Reading
from headrace.errors import HeadraceError, OffsetTrimmed
from headrace.protocol.headers import media_type

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Update:
    """What one chunk changed, and the offset of the state after it."""

    changes: list[Change]
    offset: str
    up_to_date: bool
    closed: bool


class StateFollower:
    """One state's place in one stream."""

    def __init__(self, target: Target, state: State, offset: str, live: Live) -> None:
        self._target = target
        self._live = live
        self.state = state
        self.offset = offset

    def flow(self) -> Flow[Update]:
        """Updates until the state has caught up, or if live, until the stream is closed."""
        while True:
            reading = Reading(self._target, self.offset, self._live)
            try:
                yield from through(reading.flow(), self._folded)
                return
            except OffsetTrimmed:
                start = yield from bootstrap(self._target)
            yield Emit(self._restarted(start))

    def _folded(self, chunk: Chunk) -> list[Update]:
        messages = parse_json(self._target.url, chunk.data)
        changes = [change for message in messages for change in self.state.apply(message)]
        self.offset = chunk.next_offset
        return [Update(changes, self.offset, chunk.up_to_date, chunk.closed)]

    def _restarted(self, start: Bootstrap) -> Update:
        changes = self._loaded(start)
        for part in start.messages:
            (message,) = parse_json(self._target.url, b"[%b]" % part.data)
            changes += self.state.apply(message)
        self.offset = start.next_offset
        return Update(changes, self.offset, start.up_to_date, closed=False)

    def _loaded(self, start: Bootstrap) -> list[Change]:
        if start.snapshot is None:
            return self.state.clear()
        kind = media_type(start.snapshot.content_type)
        if kind != STATE_MEDIA_TYPE:
            raise BadAnswer(
                self._target.url, f"its snapshot is {kind}; a state needs {STATE_MEDIA_TYPE}"
            )
        try:
            return self.state.load(start.snapshot.data)
        except ValueError as error:
            raise BadAnswer(self._target.url, str(error)) from None


def through(flow: Flow[A], make: Callable[[A], Iterable[B]]) -> Flow[B]:
    """A flow whose items are made into others."""
    try:
        effect = next(flow)
        while True:
            if isinstance(effect, Emit):
                for item in make(effect.value):
                    yield Emit(item)
                effect = flow.send(None)
                continue
            try:
                result = yield effect
            except HeadraceError as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(result)
    except StopIteration:
        return
    finally:
        flow.close()
