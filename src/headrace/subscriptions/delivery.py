"""Which webhook is sent when: at most one per subscription at a time, at most POSTS_MAX in all.

At most half of those are repeats, so that receivers that are down do not hold up those that are
not.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from importlib import import_module
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from headrace.subscriptions.targets import TargetRules

POSTS_MAX: Final = 32  # half of the descriptors that the server keeps from its clients
REPEATS_MAX: Final = POSTS_MAX // 2

K = TypeVar("K", bound=Hashable)


class Outgoing(NamedTuple):
    """One webhook, ready to be sent."""

    wake_id: str
    url: str
    signature: str
    body: bytes
    timeout_secs: float


class Delivered(NamedTuple):
    """The receiver answered with success; `done`: it has finished the wake."""

    done: bool


class Failed(NamedTuple):
    reason: str


class Poster(Protocol):
    async def post(self, outgoing: Outgoing) -> Delivered | Failed: ...


class LatePoster:
    """The HttpPoster, from the first webhook on.

    Most servers send none, and its HTTP library takes a fifth of the time they need to start.
    """

    def __init__(self, rules: TargetRules) -> None:
        self._rules = rules
        self._poster: Poster | None = None

    async def post(self, outgoing: Outgoing) -> Delivered | Failed:
        if self._poster is None:
            try:
                module = await asyncio.to_thread(import_module, "headrace.subscriptions.poster")
            except Exception as error:  # no descriptors left, say: one delivery fails, not all
                return Failed(f"{type(error).__name__}: {error}")
            self._poster = module.HttpPoster(self._rules)
        return await self._poster.post(outgoing)


class Deliveries(Generic[K]):
    """The queue in front of a Poster, and the task group behind it.

    `prepare` makes the webhook of a subscription when its turn comes, or None if there is nothing
    to send any more; `finish` hears how it went.
    """

    def __init__(
        self,
        poster: Poster,
        prepare: Callable[[K], Outgoing | None],
        finish: Callable[[K, Outgoing, Delivered | Failed], None],
    ) -> None:
        self._poster = poster
        self._prepare = prepare
        self._finish = finish
        # Each holds a subscription at most once, so their bound is that of subscriptions.
        self._fresh: OrderedDict[K, None] = OrderedDict()
        self._repeats: OrderedDict[K, None] = OrderedDict()
        self._again: dict[K, bool] = {}
        self._active: dict[K, asyncio.Task[None]] = {}
        self._active_repeats = 0
        self._changed = asyncio.Event()

    def enqueue(self, key: K, *, repeat: bool) -> None:
        """Send the webhook of `key` when there is room, and not before its last one has ended."""
        if key in self._active:
            self._again[key] = repeat
            return
        (self._repeats if repeat else self._fresh)[key] = None
        self._changed.set()

    def drop(self, key: K) -> None:
        """Send nothing more for `key`, and break off what is being sent."""
        self._fresh.pop(key, None)
        self._repeats.pop(key, None)
        self._again.pop(key, None)
        if key in self._active:
            self._active[key].cancel()

    async def run(self) -> None:
        """For ever; raises what a delivery died of, which is a defect of ours."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._changed.wait()
                self._changed.clear()
                self._fill(group)

    def _fill(self, group: asyncio.TaskGroup) -> None:
        while len(self._active) < POSTS_MAX:
            if self._fresh:
                key, repeat = self._fresh.popitem(last=False)[0], False
            elif self._repeats and self._active_repeats < REPEATS_MAX:
                key, repeat = self._repeats.popitem(last=False)[0], True
            else:
                return
            outgoing = self._prepare(key)
            if outgoing is None:
                continue
            self._active_repeats += repeat
            task = group.create_task(self._deliver(key, outgoing))
            self._active[key] = task
            task.add_done_callback(partial(self._ended, key, repeat))

    async def _deliver(self, key: K, outgoing: Outgoing) -> None:
        result = await self._poster.post(outgoing)
        self._finish(key, outgoing, result)

    def _ended(self, key: K, repeat: bool, _: asyncio.Task[None]) -> None:
        self._active_repeats -= repeat
        del self._active[key]
        if key in self._again:
            self.enqueue(key, repeat=self._again.pop(key))
        self._changed.set()
