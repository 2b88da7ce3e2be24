"""Which webhook is sent when: at most one per subscription at a time, at most SENDS_MAX in all.

Hosts have their turn one after another, whatever the number of subscriptions that call them. A
receiver that does not answer holds its place until the time is up, so no host has all places: one
that answered last time has half of them at most, one that is new has few, and one that keeps
failing has one. Some places are only for hosts that answered last time, and at most half of them
are taken by repeats: receivers that are down, or pretend to be, do not hold up those that are not.

Each rule has its incident. 120 subscriptions to one receiver that never answered took all places,
and another tenant's webhook was 30 seconds late. One receiver under many names took the places of
all new hosts, which is why new ones are counted by address as well.

    waits            in `_hosts`, by host: fresh ones before repeats
    is looked up     its host is new: LOOKUPS_MAX at a time
    is sent          in `_active`, with a place of its host, of the address and of its kind
    is asked for     in `_again`, if it is being sent: it waits once that has ended
     again

Everything runs on the event loop. The counts of places change in `_begin` and `_ended` only, each
called once for a delivery, however it ends.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from ipaddress import IPv6Address, IPv6Network
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from headrace.clock import monotonic
from headrace.subscriptions.callback_urls import Address, TargetRules, parse_target, resolve

SENDS_MAX: Final = 32  # half of the descriptors that the server keeps from its clients
REPEATS_MAX: Final = SENDS_MAX // 2
HOST_SENDS_MAX: Final = SENDS_MAX // 2
NEW_HOST_SENDS_MAX: Final = 4
UNPROVEN_POSTS_MAX: Final = SENDS_MAX - 8  # places for hosts that are new or failed last time
UNPROVEN_ADDRESS_POSTS_MAX: Final = UNPROVEN_POSTS_MAX // 3  # of them, for one address
ADDRESS_POSTS_MAX: Final = SENDS_MAX // 2
LOOKUPS_MAX: Final = 8
LOOKUP_SECS: Final = 5.0  # the time a resolver takes to ask a second server
LOOKED_UP_SECS: Final = 10.0  # how long the answer is used
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
    async def addresses(self, host: str) -> Sequence[Address]:
        """Where webhooks to a host (see `host_of_url`) would go; raises if nowhere."""
        ...

    async def post(
        self, outgoing: Outgoing, addresses: Sequence[Address] = ()
    ) -> Delivered | Failed:
        """Send to one of `addresses`; without any, to what the name leads to now."""
        ...


class LazySender:
    """The WebhookSender, from the first webhook on.

    Most servers send none, and its HTTP library takes a fifth of the time they need to start.
    """

    def __init__(self, rules: TargetRules) -> None:
        self._rules = rules
        self._sender: Sender | None = None

    async def addresses(self, host: str) -> Sequence[Address]:
        return await addresses_of(host, self._rules)

    async def post(
        self, outgoing: Outgoing, addresses: Sequence[Address] = ()
    ) -> Delivered | Failed:
        if self._sender is None:
            try:
                module = await asyncio.to_thread(
                    import_module, "headrace.subscriptions.webhook_sender"
                )
            except Exception as error:  # no descriptors left, say: one delivery fails, not all
                return Failed(f"{type(error).__name__}: {error}")
            self._sender = module.WebhookSender(self._rules)
        return await self._sender.post(outgoing, addresses)


class _Sending(NamedTuple):
    """What a delivery under way counts as."""

    host: str
    networks: tuple[str, ...]
    is_repeat: bool
    is_proven: bool


class _Host(Generic[K]):
    """What waits for one host, and how many are being sent to it."""

    __slots__ = ("active", "addresses", "fresh", "is_looking", "looked_up_at", "repeats")

    def __init__(self) -> None:
        # Each holds a subscription at most once, so their bound is that of subscriptions.
        self.fresh: OrderedDict[K, None] = OrderedDict()
        self.repeats: OrderedDict[K, None] = OrderedDict()
        self.active = 0
        self.addresses: Sequence[Address] = ()
        self.looked_up_at = -LOOKED_UP_SECS
        self.is_looking = False

    @property
    def is_idle(self) -> bool:
        return not (self.fresh or self.repeats or self.active)

    def is_looked_up(self) -> bool:
        return monotonic() - self.looked_up_at < LOOKED_UP_SECS


class _Places:
    """How many deliveries are under way to each network of receivers.

    A name may have several addresses and the connection go to any, so it counts at each. One that
    could not be looked up counts with all others of its kind.
    """

    def __init__(self) -> None:
        self._active: Counter[str] = Counter()
        self._unproven: Counter[str] = Counter()

    def has_room(self, networks: Sequence[str], *, is_proven: bool) -> bool:
        return all(
            self._active[network] < ADDRESS_POSTS_MAX
            and (is_proven or self._unproven[network] < UNPROVEN_ADDRESS_POSTS_MAX)
            for network in networks
        )

    def take(self, networks: Sequence[str], *, is_proven: bool) -> None:
        self._active.update(networks)
        if not is_proven:
            self._unproven.update(networks)

    def give_back(self, networks: Sequence[str], *, was_proven: bool) -> None:
        _subtract(self._active, networks)
        if not was_proven:
            _subtract(self._unproven, networks)


def _subtract(counts: Counter[str], networks: Sequence[str]) -> None:
    for network in networks:
        counts[network] -= 1
        if not counts[network]:
            del counts[network]


def _networks(addresses: Sequence[Address]) -> tuple[str, ...]:
    """What belongs to one receiver: an IPv4 address, or the /64 that an IPv6 host has to itself."""
    found = (
        str(IPv6Network((int(address), 64), strict=False))
        if isinstance(address, IPv6Address)
        else str(address)
        for address in addresses
    )
    return tuple(dict.fromkeys(found)) or ("",)


class _Standing:
    """How the last deliveries to each host went: how many have failed in a row."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._networks: dict[str, tuple[str, ...]] = {}

    def place(self, host: str, networks: tuple[str, ...]) -> None:
        """Where a host is, to be known when it answered and is not looked up any more."""
        self._networks[host] = networks

    def networks(self, host: str) -> tuple[str, ...]:
        return self._networks.get(host, ("",))

    def note(self, host: str, *, failed: bool) -> None:
        self._failures[host] = self._failures.pop(host, 0) + 1 if failed else 0
        self._failures.move_to_end(host)
        if len(self._failures) > HOSTS_REMEMBERED_MAX:
            forgotten, _ = self._failures.popitem(last=False)
            self._networks.pop(forgotten, None)

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
    `defect` is called while an exception is handled that one of them raised for a subscription.
    """

    def __init__(
        self,
        sender: Sender,
        prepare: Callable[[K], Outgoing | None],
        finish: Callable[[K, Outgoing, Delivered | Failed], None],
        host_of: Callable[[K], str],
        defect: Callable[[K], None],
    ) -> None:
        self._sender = sender
        self._prepare = prepare
        self._finish = finish
        self._host_of = host_of
        self._defect = defect
        # In the order in which they have their turn.
        self._hosts: OrderedDict[str, _Host[K]] = OrderedDict()
        self._standing = _Standing()
        self._again: dict[K, bool] = {}
        self._active: dict[K, asyncio.Task[None]] = {}
        self._active_repeats = 0
        self._active_unproven = 0
        self._places = _Places()
        self._lookups = 0
        self._changed = asyncio.Event()

    def enqueue(self, key: K, *, repeat: bool) -> None:
        """Send the webhook of `key` when there is room, and not before its last one has ended."""
        # One at a time for each subscription, and what comes meanwhile once: when its turn comes,
        # `prepare` looks at what there is to send then.
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
        """For ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while self._fill(group):
                    pass

    def _fill(self, group: asyncio.TaskGroup) -> bool:
        """One turn for each host; whether another may have something to send, too."""
        begun = False
        # One turn each, and a host that had one goes to the end (`_begin`): a host with a thousand
        # subscriptions gets no more turns than one with a single one.
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
        if not self._is_anything_ready(host):
            return False
        # Names are cheap: one receiver under many of them once took all places of new hosts. So
        # what is new is counted by its address as well, for which it must be known.
        if not is_proven and not host.is_looked_up():
            self._begin_lookup(name, host, group)
            return False
        networks = self._standing.networks(name) if is_proven else _networks(host.addresses)
        if not self._places.has_room(networks, is_proven=is_proven):
            return False
        while self._is_anything_ready(host):
            repeat = not host.fresh
            key = (host.repeats if repeat else host.fresh).popitem(last=False)[0]
            outgoing = self._prepared(key)
            if outgoing is not None:
                sending = _Sending(name, networks, repeat, is_proven)
                self._begin(key, sending, self._deliver(key, host, sending, outgoing), group)
                return True
        return False

    def _is_anything_ready(self, host: _Host[K]) -> bool:
        return bool(host.fresh or (host.repeats and self._active_repeats < REPEATS_MAX))

    def _prepared(self, key: K) -> Outgoing | None:
        try:
            return self._prepare(key)
        except Exception:
            self._defect(key)
            return None

    def _begin_lookup(self, name: str, host: _Host[K], group: asyncio.TaskGroup) -> None:
        if not host.is_looking and self._lookups < LOOKUPS_MAX:
            host.is_looking = True
            self._lookups += 1
            group.create_task(self._look_up(name, host))

    async def _look_up(self, name: str, host: _Host[K]) -> None:
        try:
            async with asyncio.timeout(LOOKUP_SECS):
                host.addresses = await self._sender.addresses(name)
        except Exception:  # the delivery finds the same, and reports it
            host.addresses = ()
        finally:
            host.looked_up_at = monotonic()
            host.is_looking = False
            self._lookups -= 1
            self._changed.set()

    def _begin(
        self,
        key: K,
        sending: _Sending,
        delivery: Coroutine[None, None, None],
        group: asyncio.TaskGroup,
    ) -> None:
        self._hosts.move_to_end(sending.host)
        self._hosts[sending.host].active += 1
        self._active_repeats += sending.is_repeat
        self._active_unproven += not sending.is_proven
        self._places.take(sending.networks, is_proven=sending.is_proven)
        task = group.create_task(delivery)
        self._active[key] = task
        task.add_done_callback(partial(self._ended, key, sending))

    async def _deliver(self, key: K, host: _Host[K], sending: _Sending, outgoing: Outgoing) -> None:
        try:
            # To the address it was counted at, and not to what the name leads to by now.
            addresses = () if sending.is_proven else host.addresses
            result = await self._sender.post(outgoing, addresses)
            self._standing.note(sending.host, failed=isinstance(result, Failed))
            self._standing.place(sending.host, sending.networks)
            self._finish(key, outgoing, result)
        except Exception:
            self._defect(key)

    def _ended(self, key: K, sending: _Sending, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            # Until it is asked for, the task keeps the exception, and that its frames, and they
            # the task: a cycle that only the garbage collector could free.
            with suppress(asyncio.CancelledError):
                task.exception()
        self._hosts[sending.host].active -= 1
        self._active_repeats -= sending.is_repeat
        self._active_unproven -= not sending.is_proven
        self._places.give_back(sending.networks, was_proven=sending.is_proven)
        del self._active[key]
        if key in self._again:
            self.enqueue(key, repeat=self._again.pop(key))
        self._forget_idle(sending.host)
        self._changed.set()

    def _forget_idle(self, name: str) -> None:
        if self._hosts[name].is_idle:
            del self._hosts[name]


async def addresses_of(host: str, rules: TargetRules) -> Sequence[Address]:
    """Of a host as `host_of_url` writes it, all of them allowed; raises if one is not."""
    return await resolve(parse_target(f"{host}/", rules), rules, asyncio.get_running_loop())


def host_of_url(url: str) -> str:
    """Scheme, host and port of a URL that `callback_urls` has accepted, as it writes them."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{re.split('[/?#]', rest, maxsplit=1)[0]}".lower()
