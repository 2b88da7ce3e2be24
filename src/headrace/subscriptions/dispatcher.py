"""Runs wakes: carries out what `model` decides, and reports to it what happened.

Everything runs on the event loop without awaiting in between. The effect of an append is deferred
to the next turn of the loop, for three reasons: the append does not wait for it, all appends of
one turn cause one wake, and a wake stream that wakes another subscription does not recurse. Each
subscription has at most one timer: for its lease, or for its next delivery attempt.

Each subscription is served on its own (`attempt`): a defect in the timer, wake or delivery of one
sets that one aside, and the others go on. One that is set aside keeps what it has stored. Nothing
wakes it until a request to it succeeds (a claim, an answer), or until it is tried again after
RETRY_SECS.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson

from headrace.engine.engine import AppendOutcome, Engine
from headrace.engine.slices import Slices
from headrace.engine.stream_runtime import Stream
from headrace.errors import HeadraceError
from headrace.faults import internal_fault
from headrace.protocol.requests import Append
from headrace.subscriptions import model, payloads
from headrace.subscriptions.delivery import (
    Delivered,
    Deliveries,
    Failed,
    Outgoing,
    Sender,
    host_of_url,
)
from headrace.subscriptions.errors import SubscriptionRefused
from headrace.subscriptions.links import Follower
from headrace.subscriptions.model import Step, SubscriptionKind
from headrace.subscriptions.payloads import Urls
from headrace.subscriptions.signing import CallbackTokens, SigningKey
from headrace.subscriptions.store import SubscriptionStore

logger = logging.getLogger(__name__)

RETRY_SECS: Final = 60.0  # each try of one that fails again is a traceback in the log


@dataclass(frozen=True, slots=True)
class WebhookSigner:
    """What a webhook needs besides its subscription: URLs, the signing key, callback tokens."""

    urls: Urls
    key: SigningKey
    tokens: CallbackTokens


class Dispatcher:
    def __init__(
        self,
        engine: Engine,
        sender: Sender,
        signer: WebhookSigner,
        store: SubscriptionStore,
        timeout_secs: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.deliveries: Counter[str] = Counter()
        self.fault_count = 0
        self.set_aside: dict[Follower, None] = {}
        self._engine = engine
        self._signer = signer
        self._store = store
        self._timeout_secs = timeout_secs
        self._loop = loop
        self._posts: Deliveries[Follower] = Deliveries(
            sender, self._prepare, self._finish, _host_of, self.on_defect
        )
        # By name and not by stream: a wake stream may be deleted and created again.
        self._wake_streams: defaultdict[str, dict[Follower, None]] = defaultdict(dict)
        # At most one each: for the lease, for the next attempt, or for the retry after a defect.
        self._timers: dict[Follower, asyncio.TimerHandle] = {}
        # A wake lists up to 1000 streams, and its event is an append: others want the loop, too.
        self._slices = Slices(loop)
        # Each once, in the order of arrival: all appends until its turn cause one wake.
        self._due: dict[Follower, None] = {}
        self._durable: deque[tuple[Follower, str]] = deque()  # wakes to be handed over
        self._failure: asyncio.Future[None] = loop.create_future()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        engine.on_stream_created(self._on_created)

    # -- life ------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = self._loop.create_task(self._posts.run())
        self._task.add_done_callback(self._on_task_done)

    async def failed(self) -> None:
        """Returns never, or raises what a background task died of."""
        await asyncio.shield(self._failure)

    async def stop(self) -> None:
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._task is not None:
            self._task.cancel()
            # Until it has ended: its deliveries must not call back into a storage that is closed.
            await asyncio.wait([self._task])

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """A defect of what all subscriptions share: the server ends with it."""
        if not self._failure.done():
            self._failure.set_exception(error)

    # -- defects ---------------------------------------------------------------------------

    def attempt(self, follower: Follower, action: Callable[..., None], *arguments: Any) -> None:
        """Do something for one subscription, unless it is set aside."""
        if self._stopped or follower in self.set_aside:
            return
        try:
            action(follower, *arguments)
        except Exception:
            self.on_defect(follower)

    def on_defect(self, follower: Follower) -> None:
        """While an exception is handled: nothing is done for this subscription any more."""
        subscription = follower.subscription
        fault = internal_fault(f"serving the subscription {subscription.id!r}")
        self.fault_count += 1
        self.set_aside[follower] = None
        subscription.degraded = (
            f"An internal error stopped its wakes, which are tried again every {RETRY_SECS:g} s. "
            f"The log has the error under the reference {fault.reference}."
        )
        self._due.pop(follower, None)
        self._disarm(follower)
        # Also what is being sent: its result would be reported to a state that is in doubt.
        self._posts.drop(follower)
        if not self._stopped:
            self._timers[follower] = self._loop.call_later(RETRY_SECS, self._retry, follower)

    def _retry(self, follower: Follower) -> None:
        """As after a restart: what was under way is unknown."""
        del self._timers[follower]
        self._take_back(follower)
        self.attempt(follower, self._resume)

    def _take_back(self, follower: Follower) -> None:
        del self.set_aside[follower]
        follower.subscription.degraded = None
        logger.info(
            "a subscription is served again", extra={"subscription": follower.subscription.id}
        )

    # -- steps -----------------------------------------------------------------------------

    def add(self, follower: Follower) -> None:
        wake_stream = follower.subscription.config.wake_stream
        if wake_stream is not None:
            self._wake_streams[wake_stream][follower] = None

    def resume(self, follower: Follower) -> None:
        """A subscription of an earlier run goes on where that left it."""
        self.attempt(follower, self._resume)

    def _resume(self, follower: Follower) -> None:
        subscription = follower.subscription
        wake, is_webhook = (
            subscription.delivery.wake,
            subscription.config.kind is SubscriptionKind.WEBHOOK,
        )
        if wake is not None and wake.holder is None:
            if wake.lease_until_ms is not None:
                # The webhook was in flight when the process ended, so its answer is lost.
                now_ms = self._engine.steady.now_ms()
                step = model.decide_failed(subscription, wake.id, now_ms, random.random())
                self.carry_out(follower, step)
                return
            # A webhook that has failed waits for its timer, which is set below.
            if not is_webhook or not subscription.is_failing:
                self._hand_over(follower, wake.id)
        self.save_and_schedule(follower)

    def remove(self, follower: Follower) -> None:
        """End its wake, timer and deliveries: nothing happens for this subscription any more."""
        model.apply(follower.subscription, Step(follower.subscription.delivery.ended()))
        self._posts.drop(follower)
        self._due.pop(follower, None)
        self.set_aside.pop(follower, None)
        self._disarm(follower)
        wake_stream = follower.subscription.config.wake_stream
        if wake_stream is not None:
            del self._wake_streams[wake_stream][follower]
            if not self._wake_streams[wake_stream]:
                del self._wake_streams[wake_stream]

    def carry_out(self, follower: Follower, decision: Step | SubscriptionRefused | None) -> None:
        if isinstance(decision, SubscriptionRefused):
            raise decision
        if decision is not None:
            model.apply(follower.subscription, decision)
            self.save_and_schedule(follower)

    def save_and_schedule(self, follower: Follower) -> None:
        """Store what just changed; wake if there is something new; set the timer again."""
        if follower in self.set_aside:
            self._take_back(follower)
        # Before anything that it may cause: what was decided is handed to storage first, and all
        # that leaves the server waits for storage.
        self._store.save(follower.subscription)
        self.wake_soon(follower)
        self._disarm(follower)
        due_at_ms = follower.subscription.due_at_ms
        if due_at_ms is not None and not self._stopped:
            left_ms = due_at_ms - self._engine.steady.now_ms()
            # The time may come from an earlier run with another wall clock: no wait is longer
            # than it was when it began.
            delay_ms = min(max(0, left_ms), model.longest_wait_ms(follower.subscription))
            self._timers[follower] = self._loop.call_later(
                delay_ms / 1000, self.attempt, follower, self._on_timer
            )

    def _disarm(self, follower: Follower) -> None:
        timer = self._timers.pop(follower, None)
        if timer is not None:
            timer.cancel()

    def _on_timer(self, follower: Follower) -> None:
        """The timer is the truth: what it was armed by may be of another run, and its clock."""
        del self._timers[follower]
        subscription = follower.subscription
        wake = subscription.delivery.wake
        assert wake is not None, "a timer runs for a wake"
        if wake.lease_until_ms is None:
            # No lease runs, so it was the wait before another attempt.
            self._posts.enqueue(follower, repeat=True)
            return
        now_ms = self._engine.steady.now_ms()
        self.carry_out(follower, model.decide_expiry(subscription, now_ms, random.random()))

    # -- waking ----------------------------------------------------------------------------

    def wake_soon(self, follower: Follower) -> None:
        """Runs within every append to a stream that is subscribed to."""
        subscription = follower.subscription
        # One wake at a time: what comes meanwhile is pending, and starts the next when this one
        # ends.
        if subscription.delivery.wake is not None or not subscription.pending:
            return
        # It is all that an append does for a subscription; the wake itself is made in a later turn.
        if follower not in self.set_aside:
            if not self._due:
                self._slices.run_later(self._wake_due(), self.fail, is_short=True)
            self._due[follower] = None

    def _wake_due(self) -> Iterator[None]:
        while self._due:
            follower = next(iter(self._due))
            del self._due[follower]
            self.attempt(follower, self._wake)
            yield

    def _wake(self, follower: Follower) -> None:
        # Decided now and not when it was asked for: a claim may have come first.
        step = model.decide_wake(follower.subscription, new_wake_id())
        if step is None:
            return
        self.carry_out(follower, step)
        wake = step.delivery.wake
        assert wake is not None, "a wake was decided"
        self._hand_over_durable(follower, wake.id)

    def _hand_over_durable(self, follower: Follower, wake_id: str) -> None:
        """A wake is durable before it is announced: no other may ever have its generation."""
        self._engine.when_documents_durable(lambda: self._hand_over_soon(follower, wake_id))

    def _hand_over_soon(self, follower: Follower, wake_id: str) -> None:
        """Thousands may have become durable in one batch."""
        if not self._durable:
            self._slices.run_later(self._hand_over_all(), self.fail, is_short=True)
        self._durable.append((follower, wake_id))

    def _hand_over_all(self) -> Iterator[None]:
        while self._durable:
            follower, wake_id = self._durable.popleft()
            self.attempt(follower, self._hand_over, wake_id)
            yield

    def _hand_over(self, follower: Follower, wake_id: str) -> None:
        """Hand a wake over, unless it is over or has been claimed by now."""
        wake = follower.subscription.delivery.wake
        if wake is None or wake.id != wake_id or wake.holder is not None:
            return
        if follower.subscription.config.kind is SubscriptionKind.WEBHOOK:
            self._posts.enqueue(follower, repeat=False)
        else:
            self._announce(follower)

    def _announce(self, follower: Follower) -> None:
        """Write the wake event. If that fails the wake stays, and can be claimed without it."""
        subscription = follower.subscription
        wake = subscription.delivery.wake
        name = subscription.config.wake_stream
        assert wake is not None, "there is a wake to announce"
        assert name is not None, "a pull-wake subscription has a wake stream"

        def written(outcome: AppendOutcome) -> None:
            if isinstance(outcome, HeadraceError):
                facts = {"subscription": subscription.id, "reason": outcome.detail}
                logger.warning("a wake event was not written", extra=facts)

        try:
            stream = self._engine.find(name)
        except HeadraceError as refusal:
            written(refusal)
            return
        body = orjson.dumps(payloads.wake_event(subscription, wake, self._engine.clock.now_ms()))
        # Bytes have no boundaries on the wire: without a line end two events would run together.
        if not stream.state.is_json:
            body += b"\n"
        self._engine.append(stream, Append(body, stream.state.config.content_type), written)

    def _on_created(self, stream: Stream) -> None:
        """A wake stream that was missing gets the events that nobody has claimed yet."""
        # Events that could not be written while it was missing were only logged; the wakes are
        # still there.
        if stream.state.name in self._wake_streams:
            followers = list(self._wake_streams[stream.state.name])
            self._slices.run_later(self._announce_again(followers), self.fail)

    def _announce_again(self, followers: Iterable[Follower]) -> Iterator[None]:
        for follower in followers:
            wake = follower.subscription.delivery.wake
            if wake is not None:
                self._hand_over_durable(follower, wake.id)
            yield

    # -- webhooks --------------------------------------------------------------------------

    def _prepare(self, follower: Follower) -> Outgoing | None:
        subscription = follower.subscription
        now_ms = self._engine.steady.now_ms()
        step = model.decide_attempt(subscription, now_ms)
        if step is None:
            return None
        self.carry_out(follower, step)
        wake = step.delivery.wake
        url = subscription.config.webhook_url
        assert wake is not None, "an attempt is made for a wake"
        assert url is not None, "an attempt is made for a webhook"
        signer = self._signer
        token = signer.tokens.issue(subscription.id, wake.generation, now_ms)
        callback_url = signer.urls.callback(subscription)
        body = orjson.dumps(payloads.webhook_body(subscription, wake, callback_url, token))
        lease_secs = subscription.config.lease_ttl_ms / 1000
        # The time of day, which receivers compare with their own; leases and tokens follow a clock
        # that nobody sets, so that a step of it ends none.
        signature = signer.key.signature(body, self._engine.clock.now_ms())
        # Not longer than the lease: after it the delivery counts as failed, and its answer for
        # nothing.
        return Outgoing(wake.id, url, signature, body, min(self._timeout_secs, lease_secs))

    def _finish(self, follower: Follower, outgoing: Outgoing, result: Delivered | Failed) -> None:
        subscription = follower.subscription
        if isinstance(result, Delivered):
            self.deliveries["delivered"] += 1
            step = model.decide_delivered(subscription, outgoing.wake_id, done=result.done)
        else:
            self.deliveries["failed"] += 1
            facts = {"subscription": subscription.id, "reason": result.reason}
            logger.warning("a webhook was not delivered", extra=facts)
            now_ms = self._engine.steady.now_ms()
            step = model.decide_failed(subscription, outgoing.wake_id, now_ms, random.random())
        self.carry_out(follower, step)


def _host_of(follower: Follower) -> str:
    return host_of_url(follower.subscription.config.webhook_url or "")


def new_wake_id() -> str:
    return f"w_{secrets.token_hex(12)}"
