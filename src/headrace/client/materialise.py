"""A state that follows a stream: reads, folds, and begins again from a snapshot when it must."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from headrace.client.async_driver import AsyncDriver, AsyncFlow, AsyncLine
from headrace.client.bootstrap import Bootstrap, bootstrap
from headrace.client.calls import Target
from headrace.client.driver import Driver, Line
from headrace.client.exchange import Emit, Flow
from headrace.client.failures import BadAnswer
from headrace.client.reading import Chunk, Live, Reading
from headrace.client.state import STATE_MEDIA_TYPE, Change, State
from headrace.client.views import parse_json
from headrace.errors import HeadraceError, OffsetTrimmed
from headrace.protocol.headers import media_type

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Update:
    """What one chunk changed, and where the state stands now."""

    changes: list[Change]
    offset: str
    up_to_date: bool
    closed: bool


class Materialising:
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


class StateView:
    """A `State` and the flow that feeds it; `updates()` moves it on.

    Iterate `updates()` to follow; `catch_up()` reads to the tail. After either, `offset` is where
    a later view goes on with the same state. `close`, from any thread, ends a live one.
    """

    def __init__(self, driver: Driver, target: Target, state: State | None, offset: str) -> None:
        self._driver = driver
        self._target = target
        self._line = Line()
        self.state = state if state is not None else State()
        self.offset = offset

    def updates(self, live: Live = False) -> Iterator[Update]:
        flow = Materialising(self._target, self.state, self.offset, live).flow()
        for update in self._driver.iterate(flow, self._line if live else None):
            self.offset = update.offset
            yield update

    def catch_up(self) -> State:
        for _ in self.updates():
            pass
        return self.state

    def close(self) -> None:
        self._line.stop()


class AsyncStateView:
    """`StateView`, awaited; `aclose`, from any task, ends a live one, and so does cancelling."""

    def __init__(
        self, driver: AsyncDriver, target: Target, state: State | None, offset: str
    ) -> None:
        self._driver = driver
        self._target = target
        self._line = AsyncLine()
        self._following: AsyncFlow[Update] | None = None
        self.state = state if state is not None else State()
        self.offset = offset

    async def updates(self, live: Live = False) -> AsyncIterator[Update]:
        flow = Materialising(self._target, self.state, self.offset, live).flow()
        line = self._line if live else None
        self._following = self._driver.iterate(flow, line)
        async for update in self._following:
            self.offset = update.offset
            yield update

    async def catch_up(self) -> State:
        async for _ in self.updates():
            pass
        return self.state

    async def aclose(self) -> None:
        """End a live iteration, and let go of its connection."""
        if not await self._line.stop() and self._following is not None:
            await self._following.aclose()
