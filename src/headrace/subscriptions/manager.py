"""The subscriptions of a server: takes requests to the model, under the names clients know.

Every method returns what the client is to be told, or raises a refusal of `subscriptions.errors`.
Both rest on what may not be durable yet: tell it after `settle`.

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
from headrace.subscriptions import documents, model
from headrace.subscriptions.delivery import LatePoster
from headrace.subscriptions.documents import Urls
from headrace.subscriptions.errors import (
    Code,
    SubscriptionRefused,
    SubscriptionsFull,
    invalid,
    not_found,
)
from headrace.subscriptions.ledger import Ledger
from headrace.subscriptions.membership import Member, Membership, Quota
from headrace.subscriptions.model import Answer, Kind, Subscription, SubscriptionConfig
from headrace.subscriptions.requests import refuse_own_wake_stream
from headrace.subscriptions.targets import TargetRules, parse_target
from headrace.subscriptions.wakes import Stationery, Wakes, new_wake_id

CATCH_UP_SECS: Final = 2.0  # a million streams are looked at in one


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
        self._ledger = Ledger(engine)
        self._key, self._tokens = self._ledger.keys()
        self._wakes = Wakes(
            engine,
            LatePoster(self._rules),
            Stationery(self._urls, self._key, self._tokens),
            self._ledger,
            settings.timeout_secs,
            loop,
        )
        self._loop = loop
        self._slices = Slices(loop)
        self._is_catching_up = False
        self._membership = Membership(
            engine,
            self._ledger,
            settings.quota,
            on_advance=self._wakes.wake_soon,
            on_loss=self._wakes.settle,
            on_room=self._catch_up_soon,
            later=lambda work: self._slices.run_later(work, self._wakes.die),
        )
        # Ids whose subscription is being made or ended.
        self._busy: set[str] = set()
        self._members = self._recover()

    def _recover(self) -> dict[str, Member]:
        kept = list(self._ledger.recover())
        members = self._membership.restore(kept)
        for found in kept:
            self._ledger.restore_delivery(found)
        for member in members:
            self._wakes.admit(member)
        return {member.subscription.id: member for member in members}

    def start(self) -> None:
        self._wakes.start()
        for member in self._members.values():
            self._wakes.resume(member)

    def settle(self, done: Callable[[], None], failed: Failed) -> None:
        """Call `done` once everything that was decided so far is durable, or never will be."""
        self._engine.settle_documents(done, failed)

    async def stop(self) -> None:
        await self._wakes.stop()

    async def failed(self) -> None:
        """Returns never, or raises what a background task died of."""
        await self._wakes.failed()

    def __len__(self) -> int:
        return len(self._members)

    @property
    def degraded_count(self) -> int:
        """Subscriptions that do not follow every stream they match."""
        return len(self._membership.degraded)

    @property
    def link_count(self) -> int:
        return self._membership.link_count

    @property
    def used_bytes(self) -> int:
        """What subscriptions and their links take of their budget."""
        return self._membership.used_bytes

    @property
    def deliveries(self) -> Counter[str]:
        """Webhooks sent, by result: delivered or failed."""
        return self._wakes.deliveries

    def check_wake_stream(self, id: str, config: SubscriptionConfig) -> None:
        """Refuse a new subscription whose wakes could not be announced.

        Only a new one: the stream may be deleted and created again while a subscription lives.
        """
        name = config.wake_stream
        if name is None or id in self._members:
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
        member = self._members.get(id)
        if member is None:
            yield from self._create(id, config, base_url)
            return True, self.get(id)
        subscription = member.subscription
        if subscription.digest != config.digest():
            raise SubscriptionRefused(
                Code.SUBSCRIPTION_ALREADY_EXISTS,
                f"The subscription {id!r} exists with another configuration. Delete it first, or "
                "use another id.",
            )
        if self._base_url_is_configured and subscription.base_url != base_url:
            # Else it comes from a Host header, and whoever repeats a PUT could have receivers
            # send their callback tokens, and look for our keys, where he likes.
            subscription.base_url = base_url
            self._ledger.enter(subscription)
        return False, self.get(id)

    def _create(
        self, id: str, config: SubscriptionConfig, base_url: str
    ) -> Generator[None, None, None]:
        if config.webhook_url is not None:
            parse_target(config.webhook_url, self._rules)
        if len(self._members) + len(self._busy) >= self._subscriptions_max:
            raise SubscriptionsFull(
                "subscriptions (webhooks.max_subscriptions)", self._subscriptions_max
            )
        subscription = Subscription(id, config, base_url, self._engine.clock.now_ms())
        self._refuse_if_full()
        self._busy.add(id)
        try:
            member = yield from self._membership.enrol(subscription)
        finally:
            self._busy.discard(id)
        self._members[id] = member
        member.active = True
        self._ledger.enter(subscription)
        self._wakes.admit(member)
        self._wakes.wake_soon(member)  # something may have come while it was being made

    def _refuse_if_full(self) -> None:
        """Answers and deletions go on: they make little, or make room."""
        refusal = self._engine.write_refusal
        if refusal is not None:
            raise refusal

    def get(self, id: str) -> dict[str, Any]:
        return documents.describe(self._find(id).subscription, self._urls, self._key.kid)

    def page(self, prefix: str, after: str, limit: int) -> dict[str, Any]:
        """Subscriptions in the order of their ids, from behind `after`."""
        start = after.encode()
        matching = (
            (id.encode(), id)
            for id in self._members
            if id.startswith(prefix) and id.encode() > start
        )
        found = [id for _, id in nsmallest(limit + 1, matching)]
        subscriptions = [self._members[id].subscription for id in found[:limit]]
        return documents.page(
            subscriptions, prefix, self._urls, self._key.kid, has_more=len(found) > limit
        )

    def delete(self, id: str) -> None:
        """At once."""
        for _ in self.delete_steps(id):
            pass

    def delete_steps(self, id: str) -> Generator[None, None, None]:
        while id in self._busy:
            yield
        member = self._members.pop(id, None)
        if member is None:
            return
        self._ledger.strike(member.subscription)
        self._wakes.dismiss(member)
        self._busy.add(id)
        try:
            yield from self._membership.withdraw(member)
        finally:
            self._busy.discard(id)

    def _catch_up_soon(self) -> None:
        """There may be room for links that were missed; looking for them takes all streams."""
        if not self._is_catching_up:
            self._is_catching_up = True
            self._loop.call_later(CATCH_UP_SECS, self._catch_up)

    def _catch_up(self) -> None:
        def work() -> Iterator[None]:
            yield from self._membership.catch_up()
            self._is_catching_up = False

        self._slices.run_later(work(), self._wakes.die)

    def add_streams(self, id: str, names: tuple[str, ...]) -> None:
        member = self._find(id)
        refuse_own_wake_stream(member.subscription.config, names)
        self._refuse_if_full()
        self._membership.add(member, names)
        self._ledger.save(member.subscription)

    def remove_stream(self, id: str, name: str) -> None:
        member = self._find(id)
        self._membership.remove(member, name)
        self._wakes.settle(member)

    def claim(self, id: str, worker: str) -> dict[str, Any]:
        member = self._find(id, Kind.PULL_WAKE)
        subscription = member.subscription
        now_ms = self._engine.steady.now_ms()
        decision = model.decide_claim(subscription, worker, new_wake_id(), now_ms)
        self._wakes.carry_out(member, decision)
        wake = subscription.delivery.wake
        assert wake is not None, "whoever claims holds a wake"
        token = self._tokens.issue(id, wake.generation, now_ms)
        return documents.claimed(subscription, wake, token)

    def answer(self, id: str, kind: Kind, token: str, answer: Answer) -> dict[str, Any]:
        """A callback (webhook) or an ack (pull-wake)."""
        member = self._find(id, kind)
        subscription = member.subscription
        now_ms = self._engine.steady.now_ms()
        generation = self._tokens.generation(token, id, now_ms)
        decision = model.decide_answer(subscription, answer, generation, now_ms, self._is_boundary)
        self._wakes.carry_out(member, decision)
        return {"ok": True, "next_wake": answer.done and bool(subscription.pending)}

    def release(self, id: str, token: str, answer: Answer) -> None:
        member = self._find(id, Kind.PULL_WAKE)
        generation = self._tokens.generation(token, id, self._engine.steady.now_ms())
        self._wakes.carry_out(member, model.decide_release(member.subscription, answer, generation))

    def jwks(self) -> dict[str, Any]:
        return self._key.jwks

    def _find(self, id: str, kind: Kind | None = None) -> Member:
        member = self._members.get(id)
        if member is None:
            raise not_found(id)
        actual = member.subscription.config.kind
        if kind is not None and actual is not kind:
            raise invalid(f"The subscription {id!r} is of type {actual}; this is for {kind}.")
        return member

    def _is_boundary(self, name: str, position: Position) -> bool:
        stream = self._engine.streams.get(name)
        if stream is None:
            return position == START
        if position.bytes < stream.state.floor.bytes:
            return True  # no longer kept, so it can no longer be told
        if position == stream.visible:
            return True
        # What is not in memory is not worth a wait: it lies within the stream.
        return stream.log.read(position, stream.visible, 0) is not None
