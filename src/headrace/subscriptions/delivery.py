"""Which webhook is sent when: at most one per subscription at a time, at most SENDS_MAX in all.

Hosts have their turn one after another, whatever the number of subscriptions that call them. A
receiver that does not answer holds its place until the time is up, so no host has all places: one
that answered last time has half of them at most, one that is new has few, and one that keeps
failing has one. Some places are only for hosts that answered last time, and at most half of them
are taken by repeats: receivers that are down, or pretend to be, do not hold up those that are not.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from headrace.subscriptions.callback_urls import TargetRules

SENDS_MAX: Final = 32  # half of the descriptors that the server keeps from its clients
REPEATS_MAX: Final = SENDS_MAX // 2
HOST_SENDS_MAX: Final = SENDS_MAX // 2
NEW_HOST_SENDS_MAX: Final = 4
UNPROVEN_POSTS_MAX: Final = SENDS_MAX - 8  # places for hosts that are new or failed last time
FAILURES_MAX: Final = 4  # in a row; from then on a host has one place
HOSTS_REMEMBERED_MAX: Final = 10_000  # 100 bytes each; the ones that were called last

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


class Sender(Protocol):
    async def post(self, outgoing: Outgoing) -> Delivered | Failed: ...


class LazySender:
    """The WebhookSender, from the first webhook on.

    Most servers send none, and its HTTP library takes a fifth of the time they need to start.
    """

    def __init__(self, rules: TargetRules) -> None:
        self._rules = rules
        self._sender: Sender | None = None

    async def post(self, outgoing: Outgoing) -> Delivered | Failed:
        if self._sender is None:
            try:
                module = await asyncio.to_thread(
                    import_module, "headrace.subscriptions.webhook_sender"
                )
            except Exception as error:  # no descriptors left, say: one delivery fails, not all
                return Failed(f"{type(error).__name__}: {error}")
            self._sender = module.WebhookSender(self._rules)
        return await self._sender.post(outgoing)


class _Host(Generic[K]):
    """What waits for one host, and how many are being sent to it."""

    __slots__ = ("active", "fresh", "repeats")

    def __init__(self) -> None:
        # Each holds a subscription at most once, so their bound is that of subscriptions.
        self.fresh: OrderedDict[K, None] = OrderedDict()
        self.repeats: OrderedDict[K, None] = OrderedDict()
        self.active = 0

    @property
    def is_idle(self) -> bool:
        return not (self.fresh or self.repeats or self.active)


class _Standing:
    """How the last deliveries to each host went: how many have failed in a row."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, int] = OrderedDict()

    def note(self, host: str, *, failed: bool) -> None:
        self._failures[host] = self._failures.pop(host, 0) + 1 if failed else 0
        self._failures.move_to_end(host)
        if len(self._failures) > HOSTS_REMEMBERED_MAX:
            self._failures.popitem(last=False)

    def is_proven(self, host: str) -> bool:
        """Whether the last delivery arrived."""
        return self._failures.get(host) == 0

    def posts_max(self, host: str) -> int:
        """How many deliveries may be under way to a host at a time."""
        failures = self._failures.get(host)
        if failures == 0:
            return HOST_SENDS_MAX
        return 1 if failures is not None and failures >= FAILURES_MAX else NEW_HOST_SENDS_MAX


class Deliveries(Generic[K]):
    """The queue in front of a Sender, and the task group behind it.

    `prepare` makes the webhook of a subscription when its turn comes, or None if there is nothing
    to send any more; `finish` gets the result; `host_of` is the host its webhooks go to.
    """

    def __init__(
        self,
        sender: Sender,
        prepare: Callable[[K], Outgoing | None],
        finish: Callable[[K, Outgoing, Delivered | Failed], None],
        host_of: Callable[[K], str],
    ) -> None:
        self._sender = sender
        self._prepare = prepare
        self._finish = finish
        self._host_of = host_of
        # In the order in which they have their turn.
        self._hosts: OrderedDict[str, _Host[K]] = OrderedDict()
        self._standing = _Standing()
        self._again: dict[K, bool] = {}
        self._active: dict[K, asyncio.Task[None]] = {}
        self._active_repeats = 0
        self._active_unproven = 0
        self._changed = asyncio.Event()

    def enqueue(self, key: K, *, repeat: bool) -> None:
        """Send the webhook of `key` when there is room, and not before its last one has ended."""
        if key in self._active:
            self._again[key] = repeat
            return
        host = self._hosts.setdefault(self._host_of(key), _Host())
        (host.repeats if repeat else host.fresh)[key] = None
        self._changed.set()

    def drop(self, key: K) -> None:
        """Send nothing more for `key`, and break off what is being sent."""
        name = self._host_of(key)
        host = self._hosts.get(name)
        if host is not None:
            host.fresh.pop(key, None)
            host.repeats.pop(key, None)
            self._forget_idle(name)
        self._again.pop(key, None)
        if key in self._active:
            self._active[key].cancel()

    async def run(self) -> None:
        """For ever; raises what a delivery died of, which is a defect of ours."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while self._fill(group):
                    pass

    def _fill(self, group: asyncio.TaskGroup) -> bool:
        """One turn for each host; whether another may have something to send, too."""
        begun = False
        for name in list(self._hosts):
            if len(self._active) >= SENDS_MAX:
                return False
            begun |= self._send_next(name, group)
            self._forget_idle(name)
        return begun

    def _send_next(self, name: str, group: asyncio.TaskGroup) -> bool:
        host = self._hosts[name]
        is_proven = self._standing.is_proven(name)
        if host.active >= self._standing.posts_max(name):
            return False
        if not is_proven and self._active_unproven >= UNPROVEN_POSTS_MAX:
            return False
        while host.fresh or (host.repeats and self._active_repeats < REPEATS_MAX):
            repeat = not host.fresh
            key = (host.repeats if repeat else host.fresh).popitem(last=False)[0]
            outgoing = self._prepare(key)
            if outgoing is None:
                continue
            self._hosts.move_to_end(name)
            host.active += 1
            self._active_repeats += repeat
            self._active_unproven += not is_proven
            task = group.create_task(self._deliver(key, name, outgoing))
            self._active[key] = task
            task.add_done_callback(partial(self._ended, key, name, repeat, is_proven))
            return True
        return False

    async def _deliver(self, key: K, host: str, outgoing: Outgoing) -> None:
        result = await self._sender.post(outgoing)
        self._standing.note(host, failed=isinstance(result, Failed))
        self._finish(key, outgoing, result)

    def _ended(
        self, key: K, name: str, repeat: bool, was_proven: bool, task: asyncio.Task[None]
    ) -> None:
        if task.cancelled():
            # Until it is asked for, the task keeps the exception, and that its frames, and they
            # the task: a cycle that only the garbage collector could free.
            with suppress(asyncio.CancelledError):
                task.exception()
        self._hosts[name].active -= 1
        self._active_repeats -= repeat
        self._active_unproven -= not was_proven
        del self._active[key]
        if key in self._again:
            self.enqueue(key, repeat=self._again.pop(key))
        self._forget_idle(name)
        self._changed.set()

    def _forget_idle(self, name: str) -> None:
        if self._hosts[name].is_idle:
            del self._hosts[name]


def host_of_url(url: str) -> str:
    """Scheme, host and port of a URL that `callback_urls` has accepted, as it writes them."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{re.split('[/?#]', rest, maxsplit=1)[0]}".lower()
