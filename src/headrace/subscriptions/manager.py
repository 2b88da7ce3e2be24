"""The subscriptions of a server: takes requests to the model, under the names clients know.

Every method returns the answer for the client, or raises a refusal from `subscriptions.errors`.
Either may rest on state that is not durable yet: send it from the callback of `when_durable`.

Making and ending a subscription may concern as many streams as there are, so these go in steps
(`put_steps`, `delete_steps`), between which others have their turn. Until the last step of
`put_steps` there is no subscription; from the first of `delete_steps` on there is none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any, Final

from headrace.engine.engine import Engine
from headrace.engine.slices import Slices
from headrace.errors import HeadraceError
from headrace.protocol.offsets import START, Position
from headrace.storage.base import Failed
from headrace.subscriptions import model, payloads
from headrace.subscriptions.callback_urls import TargetRules, parse_target
from headrace.subscriptions.delivery import LazySender
from headrace.subscriptions.dispatcher import Dispatcher, WebhookSigner, new_wake_id
from headrace.subscriptions.errors import (
    Code,
    SubscriptionRefused,
    SubscriptionsFull,
    invalid,
    not_found,
    set_aside,
)
from headrace.subscriptions.links import Follower, Links, Quota
from headrace.subscriptions.model import (
    Subscription,
    SubscriptionConfig,
    SubscriptionKind,
    WorkerAnswer,
)
from headrace.subscriptions.payloads import Urls
from headrace.subscriptions.requests import refuse_own_wake_stream
from headrace.subscriptions.store import SubscriptionStore

CATCH_UP_SECS: Final = 2.0  # a million streams are checked in one


@dataclass(frozen=True, slots=True)
class SubscriptionSettings:
    allow_loopback: bool = False
    allow_private: bool = False
    timeout_secs: float = 10
    max_subscriptions: int = 10_000
    quota: Quota = field(default_factory=Quota)
    stream_root: str = "/v1/stream"
    base_url_is_configured: bool = False


class SubscriptionManager:
    def __init__(
        self, engine: Engine, settings: SubscriptionSettings, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._engine = engine
        self._stream_root = settings.stream_root
        self._subscriptions_max = settings.max_subscriptions
        self._rules = TargetRules(settings.allow_loopback, settings.allow_private)
        self._base_url_is_configured = settings.base_url_is_configured
        self._urls = Urls(settings.stream_root)
        self._store = SubscriptionStore(engine)
        self._key, self._tokens = self._store.keys()
        self._dispatcher = Dispatcher(
            engine,
            LazySender(self._rules),
            WebhookSigner(self._urls, self._key, self._tokens),
            self._store,
            settings.timeout_secs,
            loop,
        )
        self._loop = loop
        self._slices = Slices(loop)
        self._is_catching_up = False
        self._links = Links(
            engine,
            self._store,
            settings.quota,
            on_advance=self._dispatcher.wake_soon,
            on_loss=lambda follower: self._dispatcher.attempt(
                follower, self._dispatcher.save_and_schedule
            ),
            on_defect=self._dispatcher.on_defect,
            on_room=self._catch_up_soon,
            later=lambda work: self._slices.run_later(work, self._dispatcher.fail),
        )
        # Ids whose subscription is being made or ended.
        self._busy: set[str] = set()
        self._followers = self._recover()

    def _recover(self) -> dict[str, Follower]:
        kept = list(self._store.recover())
        followers = self._links.restore(kept)
        # Links first: what a stored wake says of streams that are gone is void.
        for found in kept:
            self._store.restore_delivery(found)
        for follower in followers:
            self._dispatcher.add(follower)
        return {follower.subscription.id: follower for follower in followers}

    def start(self) -> None:
        self._dispatcher.start()
        for follower in self._followers.values():
            self._dispatcher.resume(follower)

    def when_durable(self, done: Callable[[], None], failed: Failed) -> None:
        """Call `done` once everything decided so far is durable, `failed` if that cannot be."""
        self._engine.when_documents_durable(done, failed)

    async def stop(self) -> None:
        await self._dispatcher.stop()

    async def failed(self) -> None:
        """Returns never, or raises what a background task died of."""
        await self._dispatcher.failed()

    def __len__(self) -> int:
        return len(self._followers)

    @property
    def degraded_count(self) -> int:
        """Subscriptions that miss streams, that a defect stopped, or that cannot be read."""
        stopped = self._links.degraded.keys() | self._dispatcher.set_aside.keys()
        return len(stopped) + len(self._store.set_aside)

    @property
    def fault_count(self) -> int:
        """How often a defect stopped a subscription."""
        return self._dispatcher.fault_count

    @property
    def link_count(self) -> int:
        return self._links.link_count

    @property
    def used_bytes(self) -> int:
        """What subscriptions and their links take of their budget."""
        return self._links.used_bytes

    @property
    def deliveries(self) -> Counter[str]:
        """Webhooks sent, by result: delivered or failed."""
        return self._dispatcher.deliveries

    def check_wake_stream(self, id: str, config: SubscriptionConfig) -> None:
        """Refuse a new subscription whose wakes could not be announced.

        Only a new one: the stream may be deleted and created again while a subscription lives.
        """
        name = config.wake_stream
        if name is None or id in self._followers:
            return
        try:
            stream = self._engine.find(name)
        except HeadraceError as refusal:
            raise invalid(
                f'wake_stream "{name}" cannot be used: {refusal.detail} '
                f"Create it with PUT {self._stream_root}/{name} first."
            ) from None
        if stream.state.closed:
            raise invalid(f'wake_stream "{name}" is closed and takes no wake events: use another.')

    def put(
        self, id: str, config: SubscriptionConfig, base_url: str
    ) -> tuple[bool, dict[str, Any]]:
        """Create or confirm; whether it was created, and its description.

        `base_url` is for the subscription's callbacks as long as it lives, unless the operator
        configures another.
        """
        steps = self.put_steps(id, config, base_url)
        while True:
            try:
                next(steps)
            except StopIteration as finished:
                answer: tuple[bool, dict[str, Any]] = finished.value
                return answer

    def put_steps(
        self, id: str, config: SubscriptionConfig, base_url: str
    ) -> Generator[None, None, tuple[bool, dict[str, Any]]]:
        """The same in steps."""
        while id in self._busy:
            yield
        follower = self._followers.get(id)
        if follower is None:
            yield from self._create(id, config, base_url)
            return True, self.get(id)
        subscription = follower.subscription
        if subscription.digest != config.digest():
            raise SubscriptionRefused(
                Code.SUBSCRIPTION_ALREADY_EXISTS,
                f"The subscription {id!r} exists with another configuration. Delete it first, or "
                "use another id.",
            )
        if self._base_url_is_configured and subscription.base_url != base_url:
            # Else it comes from a Host header, and a client that repeats a PUT could make receivers
            # send their callback tokens, and look for our keys, at a host of its choice.
            subscription.base_url = base_url
            self._store.put(subscription)
        return False, self.get(id)

    def _create(
        self, id: str, config: SubscriptionConfig, base_url: str
    ) -> Generator[None, None, None]:
        self._check_set_aside(id)
        if config.webhook_url is not None:
            parse_target(config.webhook_url, self._rules)
        # Those that are being made count as well: they will be there when this one is.
        if len(self._followers) + len(self._busy) >= self._subscriptions_max:
            raise SubscriptionsFull(
                "subscriptions (webhooks.max_subscriptions)", self._subscriptions_max
            )
        subscription = Subscription(id, config, base_url, self._engine.clock.now_ms())
        self._refuse_if_full()
        self._busy.add(id)
        try:
            follower = yield from self._links.add_subscription(subscription)
        finally:
            self._busy.discard(id)
        # No step from here on: in one turn of the loop it is found, stored and served. A crash
        # before leaves links without a subscription, which the next start removes.
        self._followers[id] = follower
        follower.active = True
        self._store.put(subscription)
        self._dispatcher.add(follower)
        self._dispatcher.wake_soon(follower)  # something may have come while it was being made

    def _refuse_if_full(self) -> None:
        """Answers and deletions go on: they make little, or make room."""
        refusal = self._engine.write_refusal
        if refusal is not None:
            raise refusal

    def get(self, id: str) -> dict[str, Any]:
        return payloads.describe(self._find(id).subscription, self._urls, self._key.kid)

    def page(self, prefix: str, after: str, limit: int) -> dict[str, Any]:
        """Subscriptions in the order of their ids, from behind `after`."""
        start = after.encode()
        matching = (
            (id.encode(), id)
            for id in self._followers
            if id.startswith(prefix) and id.encode() > start
        )
        found = [id for _, id in nsmallest(limit + 1, matching)]
        subscriptions = [self._followers[id].subscription for id in found[:limit]]
        return payloads.page(
            subscriptions, prefix, self._urls, self._key.kid, has_more=len(found) > limit
        )

    def delete(self, id: str) -> None:
        """At once."""
        for _ in self.delete_steps(id):
            pass

    def delete_steps(self, id: str) -> Generator[None, None, None]:
        while id in self._busy:
            yield
        follower = self._followers.pop(id, None)
        if follower is None:
            if id in self._store.set_aside:
                self._store.discard(id)
            return
        # Before its links, for the same reason: a start must never find a subscription with only
        # some.
        self._store.delete(follower.subscription)
        self._dispatcher.remove(follower)
        self._busy.add(id)
        try:
            yield from self._links.remove_subscription(follower)
        finally:
            self._busy.discard(id)

    def _catch_up_soon(self) -> None:
        """There may be room for links that were missed; looking for them takes all streams."""
        if not self._is_catching_up:
            self._is_catching_up = True
            self._loop.call_later(CATCH_UP_SECS, self._catch_up)

    def _catch_up(self) -> None:
        def work() -> Iterator[None]:
            yield from self._links.catch_up()
            self._is_catching_up = False

        self._slices.run_later(work(), self._dispatcher.fail)

    def add_streams(self, id: str, names: tuple[str, ...]) -> None:
        follower = self._find(id)
        refuse_own_wake_stream(follower.subscription.config, names)
        self._refuse_if_full()
        self._links.add(follower, names)
        self._store.save(follower.subscription)

    def remove_stream(self, id: str, name: str) -> None:
        follower = self._find(id)
        self._links.remove(follower, name)
        self._dispatcher.save_and_schedule(follower)

    def claim(self, id: str, worker: str) -> dict[str, Any]:
        follower = self._find(id, SubscriptionKind.PULL_WAKE)
        subscription = follower.subscription
        now_ms = self._engine.steady.now_ms()
        decision = model.decide_claim(subscription, worker, new_wake_id(), now_ms)
        self._dispatcher.carry_out(follower, decision)
        wake = subscription.delivery.wake
        assert wake is not None, "a claim holds a wake"
        token = self._tokens.issue(id, wake.generation, now_ms)
        return payloads.claimed(subscription, wake, token)

    def answer(
        self, id: str, kind: SubscriptionKind, token: str, answer: WorkerAnswer
    ) -> dict[str, Any]:
        """A callback (webhook) or an ack (pull-wake)."""
        follower = self._find(id, kind)
        subscription = follower.subscription
        now_ms = self._engine.steady.now_ms()
        generation = self._tokens.generation(token, id, now_ms)
        decision = model.decide_answer(subscription, answer, generation, now_ms, self._is_boundary)
        self._dispatcher.carry_out(follower, decision)
        return {"ok": True, "next_wake": answer.done and bool(subscription.pending)}

    def release(self, id: str, token: str, answer: WorkerAnswer) -> None:
        follower = self._find(id, SubscriptionKind.PULL_WAKE)
        generation = self._tokens.generation(token, id, self._engine.steady.now_ms())
        self._dispatcher.carry_out(
            follower, model.decide_release(follower.subscription, answer, generation)
        )

    def jwks(self) -> dict[str, Any]:
        return self._key.jwks

    def _find(self, id: str, kind: SubscriptionKind | None = None) -> Follower:
        follower = self._followers.get(id)
        if follower is None:
            self._check_set_aside(id)
            raise not_found(id)
        actual = follower.subscription.config.kind
        if kind is not None and actual is not kind:
            raise invalid(f"The subscription {id!r} is of type {actual}; this is for {kind}.")
        return follower

    def _check_set_aside(self, id: str) -> None:
        reason = self._store.set_aside.get(id)
        if reason is not None:
            raise set_aside(id, reason)

    def _is_boundary(self, name: str, position: Position) -> bool:
        stream = self._engine.streams.get(name)
        if stream is None:
            return position == START
        if position.bytes < stream.state.trim_offset.bytes:
            return True  # not retained any more, so unknown
        if position == stream.visible:
            return True
        # What is not in memory is not worth a wait: it lies within the stream.
        return stream.log.read(position, stream.visible, 0) is not None
