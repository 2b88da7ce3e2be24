"""One subscription: what it follows, how far it got, and who works on it.

The rules:

- A link is one stream and the position acknowledged in it. It is pending while the stream's tail
  is further on. Acknowledged positions never go back.
- While anything is pending there is a wake. There is one at a time, and each has a higher
  generation than the one before.
- A wake is handed over, by a webhook's answer or by a worker's claim, and then held under a
  lease. A lease that runs out ends the wake.
- An answer counts only if it names the wake in flight and its token was made for it; anything
  else is fenced and changes nothing.
- A webhook that could not be delivered keeps its wake, so that the receiver recognises a repeat by
  its wake_id, and waits. No lease runs meanwhile, as no receiver has the work.

The states of a subscription, by the fields of its `Delivery`:

    state        wake   holder   lease   retry    meaning
    idle         no                               everything is acknowledged, or a wake is due
    announced    yes    no       no      no       webhook: about to be sent; pull-wake: the event is
                                                  in the wake stream, for a worker to claim
    sending      yes    no       yes     maybe    a webhook is in flight; `retry` counts failures
    backing off  yes    no       no      yes      a webhook failed, and is sent again later
    held         yes    yes      yes     no       a worker or a webhook's receiver has the work

    state        event                          next          generation   decided by
    idle         something is pending           announced     + 1          decide_wake
    idle         a worker claims                held          + 1          decide_claim
    announced    a worker claims                held                       decide_claim
    announced,   the webhook is sent            sending                    decide_attempt
     backing off
    announced,   its last pending stream is     idle                       unlink
     backing off removed
    sending      2xx                            held                       decide_delivered
    sending      2xx with done                  idle, acknowledged         decide_delivered
    sending      it fails, or no answer comes   backing off; idle          decide_failed,
                 within the lease               if nothing is pending      decide_expiry
    sending,     callback or ack                held, new lease            decide_answer
     held
    sending,     callback or ack with done      idle                       decide_answer
     held
    held         release, or the lease ends     idle                       decide_release,
                                                                           decide_expiry
    held         a worker claims                refused                    decide_claim
    any          answer of another wake         fenced                     decide_answer

Generations fence. A worker that was stopped (a long pause, a lost network) past its lease still
believes that it holds the work. Its answer carries the generation and the token of its wake, and
the next wake has another generation, so it changes nothing. For the same reason a generation is
durable before any receiver learns of it (`Dispatcher._hand_over_durable`): after a crash, another
wake could otherwise be given the same one.

After a restart: an announced wake is announced again; a webhook in flight counts as failed, since
its answer is lost; leases and retries run on. A receiver may therefore get one wake twice, with the
same wake_id, but never two wakes at a time.

`decide_*` are pure: time, ids and chance are arguments, the result is a Step or a refusal, and
`apply` alone carries it out. A Step is one atomic fact. `changed` names the links that the store
has yet to save.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

import orjson

from headrace.backoff import Backoff
from headrace.protocol.offsets import BEGINNING, START, Position
from headrace.subscriptions.errors import Code, SubscriptionRefused

# One wake names this many streams at most, pending ones first: acknowledging them brings the next.
WAKE_STREAMS_MAX: Final = 1000
RETRY_MS: Final = Backoff(1_000, 60_000, jitter=(0.8, 1.2))
WEBHOOK_HOLDER: Final = "webhook"


class SubscriptionKind(StrEnum):
    WEBHOOK = "webhook"
    PULL_WAKE = "pull-wake"


@dataclass(frozen=True, slots=True)
class SubscriptionConfig:
    """What a subscription was created as. `streams` are sorted, each once."""

    kind: SubscriptionKind
    pattern: str | None
    streams: tuple[str, ...]
    webhook_url: str | None
    wake_stream: str | None
    lease_ttl_ms: int
    description: str | None

    def digest(self) -> str:
        """Equal for equal configurations: what a repeated PUT is compared by."""
        fields = (
            self.kind,
            self.pattern,
            self.streams,
            self.webhook_url,
            self.wake_stream,
            self.lease_ttl_ms,
            self.description,
        )
        return hashlib.sha256(orjson.dumps(fields)).hexdigest()


class Link:
    """A stream of a subscription; `acked` None is before its first message.

    `stream_id` 0 is a stream that does not exist yet; `is_stored`: the store has a document of it.
    """

    __slots__ = ("acked", "by_glob", "explicit", "is_stored", "stream_id", "tail")

    def __init__(self, acked: Position | None, tail: Position) -> None:
        self.acked = acked
        self.tail = tail
        self.explicit = False
        self.by_glob = False
        self.is_stored = False
        self.stream_id = 0

    def is_behind(self, position: Position) -> bool:
        return position > (self.acked or START)

    @property
    def is_pending(self) -> bool:
        return self.is_behind(self.tail)

    @property
    def acked_token(self) -> str:
        return BEGINNING if self.acked is None else self.acked.token()


@dataclass(frozen=True, slots=True)
class Wake:
    """Work in flight. `tails` is acknowledged if a webhook's receiver only says "done"."""

    id: str
    generation: int
    stream: str
    tails: Mapping[str, Position]
    holder: str | None = None
    lease_until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class WebhookRetry:
    """A webhook that failed `attempts` times in a row."""

    attempts: int
    next_attempt_at_ms: int


@dataclass(frozen=True, slots=True)
class Delivery:
    generation: int = 0
    wake: Wake | None = None
    retry: WebhookRetry | None = None

    def ended(self) -> Delivery:
        return Delivery(self.generation)


@dataclass(frozen=True, slots=True)
class Step:
    """One change of one subscription."""

    delivery: Delivery
    acks: Mapping[str, Position] = field(default_factory=dict)


class Ack(NamedTuple):
    stream: str
    position: Position


class WorkerAnswer(NamedTuple):
    """What a worker says about a wake: callback, ack or release."""

    wake_id: str
    generation: int
    acks: tuple[Ack, ...] = ()
    done: bool = False


class Subscription:
    def __init__(
        self, id: str, config: SubscriptionConfig, base_url: str, created_at_ms: int
    ) -> None:
        self.id = id
        self.config = config
        self.digest = config.digest()
        self.base_url = base_url
        self.created_at_ms = created_at_ms
        self.links: dict[str, Link] = {}
        # In the order in which they became pending: the one that waits longest is named first.
        self.pending: dict[str, None] = {}
        self.changed: set[str] = set()
        self.degraded: str | None = None  # why it does not follow every stream it should
        self.delivery = Delivery()

    @property
    def is_failing(self) -> bool:
        return self.delivery.retry is not None

    @property
    def due_at_ms(self) -> int | None:
        """When the timer has to fire: the lease runs out, or the next attempt is due."""
        wake, retry = self.delivery.wake, self.delivery.retry
        if wake is None or wake.lease_until_ms is not None:
            return wake.lease_until_ms if wake else None
        return retry.next_attempt_at_ms if retry else None

    def link(
        self,
        stream: str,
        acked: Position | None,
        tail: Position,
        *,
        explicit: bool,
        stream_id: int = 0,
    ) -> None:
        """Follow a stream. One that is followed already keeps its acknowledged position."""
        if stream not in self.links:
            self.links[stream] = Link(acked, tail)
            # Else it needs no document: after a restart an unknown stream is followed from its
            # start.
            if explicit or acked is not None:
                self.changed.add(stream)
        link = self.links[stream]
        if explicit and not link.explicit:
            self.changed.add(stream)
        link.stream_id = stream_id
        link.explicit |= explicit
        link.by_glob |= not explicit
        self.advance(stream, tail)

    def unlink_explicit(self, stream: str) -> None:
        link = self.links.get(stream)
        if link is None:
            return
        # Kept if the pattern matches it as well: only the name was withdrawn.
        link.explicit = False
        self.changed.add(stream)
        if not link.by_glob:
            self.unlink(stream)

    def unlink(self, stream: str) -> None:
        link = self.links.pop(stream, None)
        if link is not None and link.is_stored:
            self.changed.add(stream)
        self.pending.pop(stream, None)
        wake = self.delivery.wake
        if wake is None:
            return
        if not self.pending and wake.lease_until_ms is None:
            # Nothing is left to hand over: the next append has to start a new wake.
            self.delivery = self.delivery.ended()
        elif stream in wake.tails:
            # A new stream may get this name: finishing this wake must not acknowledge it.
            tails = {name: tail for name, tail in wake.tails.items() if name != stream}
            self.delivery = replace(self.delivery, wake=replace(wake, tails=tails))

    def advance(self, stream: str, tail: Position) -> None:
        link = self.links[stream]
        link.tail = tail
        if link.is_pending:
            self.pending[stream] = None

    def listed(self) -> Iterator[tuple[str, Link]]:
        """The streams that one wake names, pending ones first."""
        others = (name for name in self.links if name not in self.pending)
        for group in (self.pending, others):
            for name in group:
                yield name, self.links[name]

    def tails(self) -> dict[str, Position]:
        return {name: link.tail for name, link in islice(self.listed(), WAKE_STREAMS_MAX)}


def apply(subscription: Subscription, step: Step) -> None:
    subscription.delivery = step.delivery
    for stream, position in step.acks.items():
        link = subscription.links.get(stream)
        if link is None:
            continue
        # Acknowledged positions never go back. A webhook's "done" acknowledges the tails of when it
        # was sent, and a callback during the request may already be past them.
        if link.acked is None or position > link.acked:
            link.acked = position
            subscription.changed.add(stream)
        # The tail may have moved on since the wake was made: then it stays pending, and wakes
        # again.
        if not link.is_pending:
            subscription.pending.pop(stream, None)


# -- waking ------------------------------------------------------------------------------------


def decide_wake(subscription: Subscription, wake_id: str) -> Step | None:
    """A new wake, if there is work and no wake in flight."""
    if subscription.delivery.wake is not None or not subscription.pending:
        return None
    wake = _new_wake(subscription, wake_id)
    return Step(Delivery(wake.generation, wake))


def _new_wake(subscription: Subscription, wake_id: str) -> Wake:
    generation = subscription.delivery.generation + 1
    return Wake(wake_id, generation, next(iter(subscription.pending)), subscription.tails())


def decide_expiry(subscription: Subscription, now_ms: int, chance: float) -> Step | None:
    """The lease ran out."""
    delivery = subscription.delivery
    if delivery.wake is None or delivery.wake.lease_until_ms is None:
        return None
    if delivery.wake.holder is None:
        return decide_failed(subscription, delivery.wake.id, now_ms, chance)
    # The work goes to the next generation, unacknowledged: its holder may be gone for good.
    return Step(delivery.ended())


# -- webhooks ----------------------------------------------------------------------------------


def decide_attempt(subscription: Subscription, now_ms: int) -> Step | None:
    """The webhook is sent now: its lease starts. None: there is nothing to send."""
    delivery = subscription.delivery
    wake = delivery.wake
    if wake is None or wake.holder is not None or wake.lease_until_ms is not None:
        return None
    return Step(replace(delivery, wake=_leased(subscription, wake, None, now_ms)))


def decide_delivered(subscription: Subscription, wake_id: str, *, done: bool) -> Step | None:
    """The receiver took the webhook; `done`: and finished it. None: that wake is over."""
    delivery = subscription.delivery
    wake = delivery.wake
    if wake is None or wake.id != wake_id or wake.lease_until_ms is None:
        return None
    # Of all streams the wake named, up to where they ended when it was made: the receiver knows
    # nothing of what came later, and that starts the next wake.
    if done:
        return Step(delivery.ended(), wake.tails)
    return Step(Delivery(delivery.generation, replace(wake, holder=WEBHOOK_HOLDER)))


def decide_failed(
    subscription: Subscription, wake_id: str, now_ms: int, chance: float
) -> Step | None:
    """The webhook was not delivered. None: its receiver has called back all the same (then it
    holds the work, and only the response was lost), or the wake is over."""
    delivery = subscription.delivery
    wake = delivery.wake
    if wake is None or wake.id != wake_id or wake.lease_until_ms is None or wake.holder:
        return None
    if not subscription.pending:
        # Its streams are gone, so there is nothing to send again.
        return Step(delivery.ended())
    attempts = delivery.retry.attempts + 1 if delivery.retry else 1
    retry = WebhookRetry(attempts, now_ms + backoff_ms(attempts, chance))
    return Step(Delivery(delivery.generation, replace(wake, lease_until_ms=None), retry))


def backoff_ms(attempts: int, chance: float) -> int:
    """1 s, 2 s, 4 s ... 60 s, each with a jitter of 20 %; `chance` is from 0 to 1."""
    return round(RETRY_MS.after(attempts, chance))


def longest_wait_ms(subscription: Subscription) -> int:
    """The longest that the running lease, or the wait for another attempt, can last."""
    wake = subscription.delivery.wake
    if wake is not None and wake.lease_until_ms is not None:
        return subscription.config.lease_ttl_ms
    return round(RETRY_MS.bound)


# -- workers -----------------------------------------------------------------------------------


def decide_claim(
    subscription: Subscription, worker: str, wake_id: str, now_ms: int
) -> Step | SubscriptionRefused:
    """A worker asks for the work; `wake_id` is used if there is no wake yet."""
    delivery = subscription.delivery
    wake = delivery.wake
    if wake is not None and wake.holder is not None:
        return SubscriptionRefused(
            Code.ALREADY_CLAIMED,
            f"{wake.holder!r} holds the lease. Wait for the next wake event.",
            current_holder=wake.holder,
            generation=delivery.generation,
        )
    if not subscription.pending:
        return SubscriptionRefused(
            Code.NO_PENDING_WORK, "Everything is acknowledged. Wait for the next wake event."
        )
    # A claim may come before the event: a worker polls, or the wake stream does not exist.
    wake = wake or _new_wake(subscription, wake_id)
    return Step(Delivery(wake.generation, _leased(subscription, wake, worker, now_ms)))


def decide_answer(
    subscription: Subscription,
    answer: WorkerAnswer,
    token_generation: int,
    now_ms: int,
    is_boundary: Callable[[str, Position], bool],
) -> Step | SubscriptionRefused:
    """Acknowledge, and either go on under a new lease or finish. One bad ack refuses them all."""
    wake = _fence(subscription, answer, token_generation)
    if isinstance(wake, SubscriptionRefused):
        return wake
    acks: dict[str, Position] = {}
    for ack in answer.acks:
        refusal = _check_ack(subscription, ack, is_boundary)
        if refusal is not None:
            return refusal
        # A stream may be named twice, and the order of a list is not to decide how far it got.
        acks[ack.stream] = max(ack.position, acks.get(ack.stream, START))
    delivery = subscription.delivery
    if answer.done:
        return Step(delivery.ended(), acks)
    # A callback may come before the answer to the webhook it belongs to: it takes the lease over.
    held = _leased(subscription, wake, wake.holder or WEBHOOK_HOLDER, now_ms)
    return Step(Delivery(delivery.generation, held), acks)


def decide_release(
    subscription: Subscription, answer: WorkerAnswer, token_generation: int
) -> Step | SubscriptionRefused:
    """Give the work back, unacknowledged."""
    wake = _fence(subscription, answer, token_generation)
    if isinstance(wake, SubscriptionRefused):
        return wake
    return Step(subscription.delivery.ended())


def _fence(
    subscription: Subscription, answer: WorkerAnswer, token_generation: int
) -> Wake | SubscriptionRefused:
    wake = subscription.delivery.wake
    # All three: the token is signed, so it alone cannot be guessed; the other two make a client
    # that mixes up its wakes fail instead of finishing the wrong one.
    if wake is not None and (token_generation, answer.generation, answer.wake_id) == (
        wake.generation,
        wake.generation,
        wake.id,
    ):
        return wake
    return SubscriptionRefused(
        Code.FENCED,
        f"This wake is over; generation {subscription.delivery.generation} is the latest. "
        "Nothing was acknowledged.",
        generation=subscription.delivery.generation,
    )


def _check_ack(
    subscription: Subscription, ack: Ack, is_boundary: Callable[[str, Position], bool]
) -> SubscriptionRefused | None:
    link = subscription.links.get(ack.stream)
    if link is None:
        return _invalid_offset(f"The subscription does not follow {ack.stream!r}.")
    if link.acked is not None and ack.position < link.acked:
        return _invalid_offset(f"{ack.stream!r} is acknowledged up to {link.acked} already.")
    if ack.position > link.tail:
        return _invalid_offset(f"{ack.position} is past the tail of {ack.stream!r}, {link.tail}.")
    if not is_boundary(ack.stream, ack.position):
        return _invalid_offset(f"{ack.position} is not an offset that {ack.stream!r} returned.")
    return None


def _invalid_offset(reason: str) -> SubscriptionRefused:
    return SubscriptionRefused(Code.INVALID_OFFSET, reason + " Nothing was acknowledged.")


def _leased(subscription: Subscription, wake: Wake, holder: str | None, now_ms: int) -> Wake:
    return replace(wake, holder=holder, lease_until_ms=now_ms + subscription.config.lease_ttl_ms)
