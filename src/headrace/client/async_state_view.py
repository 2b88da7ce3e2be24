"""`AsyncStateView`: a `State` and the flow that feeds it.

`client.sync_state_view` is generated from this module, so edit here and run
`python -m tools.generate_sync_client`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from headrace.client.async_driver import AsyncCancelHandle, AsyncDriver, AsyncItems
from headrace.client.requests import Target
from headrace.client.state import State
from headrace.client.state_following import StateFollower, Update
from headrace.client.stream_reading import Live


class AsyncStateView:
    """A `State` and the flow that feeds it; `updates()` moves it on.

    Iterate `updates()` to follow; `catch_up()` reads to the tail. After either, `offset` is where
    a later view goes on with the same state. `aclose`, from any task, ends a live one. Cancelling
    the task that waits does the same.
    """

    def __init__(
        self, driver: AsyncDriver, target: Target, state: State | None, offset: str
    ) -> None:
        self._driver = driver
        self._target = target
        self._line = AsyncCancelHandle()
        self._updates: AsyncItems[Update] | None = None
        self.state = state if state is not None else State()
        self.offset = offset

    async def updates(self, live: Live = False) -> AsyncIterator[Update]:
        flow = StateFollower(self._target, self.state, self.offset, live).flow()
        line = self._line if live else None
        self._updates = self._driver.iterate(flow, line, live=bool(live))
        async for update in self._updates:
            self.offset = update.offset
            yield update

    async def catch_up(self) -> State:
        async for _ in self.updates():
            pass
        return self.state

    async def aclose(self) -> None:
        """End a live iteration and release its connection."""
        await self._line.end(self._updates)
