"""Any sequence of events keeps the rules of a subscription.

The machine plays streams, workers, receivers and clocks against one subscription, and remembers
every wake there ever was in order to try it again.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.protocol.offsets import START, Position
from headrace.subscriptions.errors import Code, SubscriptionRefused
from headrace.subscriptions.model import (
    Ack,
    Delivery,
    Step,
    Subscription,
    SubscriptionConfig,
    SubscriptionKind,
    Wake,
    WorkerAnswer,
    apply,
    decide_answer,
    decide_attempt,
    decide_claim,
    decide_delivered,
    decide_expiry,
    decide_failed,
    decide_release,
    decide_wake,
)

NAMES = st.sampled_from(["a", "b", "c"])
CONFIG = SubscriptionConfig(
    SubscriptionKind.WEBHOOK, "*", (), "https://w.example/", None, 1000, None
)


class SubscriptionMachine(RuleBasedStateMachine):
    @initialize(kind=st.sampled_from(SubscriptionKind))
    def begin(self, kind: SubscriptionKind) -> None:
        self.now_ms = 1_800_000_000_000
        self.sub = Subscription("sub-1", replace(CONFIG, kind=kind), "http://s.example", 0)
        self.past: list[Wake] = []
        self.wake_ids = 0
        self.generation = 0
        self.acked: dict[str, Position] = {}

    # -- what happens ------------------------------------------------------------------------

    @rule(name=NAMES, messages=st.integers(0, 3), explicit=st.booleans(), new=st.booleans())
    def link(self, name: str, messages: int, explicit: bool, new: bool) -> None:
        if name not in self.sub.links:
            tail = Position(messages, messages)
            self.sub.link(name, None if new else tail, tail, explicit=explicit)

    @rule(name=NAMES)
    def lose(self, name: str) -> None:
        self.sub.unlink(name)
        self.acked.pop(name, None)

    @rule(name=NAMES, messages=st.integers(1, 3))
    def append(self, name: str, messages: int) -> None:
        link = self.sub.links.get(name)
        if link is not None:
            grown = Position(link.tail.messages + messages, link.tail.bytes + messages)
            self.sub.advance(name, grown)

    @rule()
    def wake(self) -> None:
        must = self.sub.delivery.wake is None and any(
            link.is_pending for link in self.sub.links.values()
        )
        step = decide_wake(self.sub, self.next_wake_id())
        assert (step is not None) == must
        self.take(step)

    @rule()
    def claim(self) -> None:
        if self.sub.config.kind is SubscriptionKind.PULL_WAKE:
            self.take(decide_claim(self.sub, "worker", self.next_wake_id(), self.now_ms))

    @rule()
    def send(self) -> None:
        if self.sub.config.kind is SubscriptionKind.WEBHOOK:
            self.take(decide_attempt(self.sub, self.now_ms))

    @precondition(lambda self: self.past)
    @rule(data=st.data(), done=st.booleans(), arrived=st.booleans())
    def end_request(self, data: st.DataObject, done: bool, arrived: bool) -> None:
        if self.sub.config.kind is SubscriptionKind.WEBHOOK:
            wake = data.draw(st.sampled_from(self.past))
            if arrived:
                self.take(decide_delivered(self.sub, wake.id, done=done))
            else:
                self.take(decide_failed(self.sub, wake.id, self.now_ms, 0.5))

    @rule()
    def let_lease_run_out(self) -> None:
        due_at_ms = self.sub.due_at_ms
        if due_at_ms is not None:
            self.now_ms = max(self.now_ms, due_at_ms)
            self.take(decide_expiry(self.sub, self.now_ms, 0.5))

    @precondition(lambda self: self.past)
    @rule(data=st.data(), done=st.booleans(), release=st.booleans())
    def answer(self, data: st.DataObject, done: bool, release: bool) -> None:
        """With any of the names there ever were, mixed at will."""
        wakes = st.sampled_from(self.past)
        wake_id = data.draw(wakes).id
        generation, token = data.draw(wakes).generation, data.draw(wakes).generation
        positions = st.builds(lambda n: Position(n, n), st.integers(0, 8))
        acks = tuple(data.draw(st.lists(st.builds(Ack, NAMES, positions), max_size=3)))
        said = WorkerAnswer(wake_id, generation, acks, done)
        before = (self.sub.delivery, self.positions())
        if release:
            outcome = decide_release(self.sub, said, token)
        else:
            outcome = decide_answer(self.sub, said, token, self.now_ms, lambda _, __: True)
        assert (self.sub.delivery, self.positions()) == before, "deciding changes nothing"
        current = self.sub.delivery.wake
        names = (wake_id, generation, token)
        if current is None or names != (current.id, current.generation, current.generation):
            assert isinstance(outcome, SubscriptionRefused)
            assert outcome.code is Code.FENCED
        self.take(outcome)

    def take(self, outcome: Step | SubscriptionRefused | None) -> None:
        if not isinstance(outcome, Step):
            return
        before = self.sub.delivery.wake
        apply(self.sub, outcome)
        after = self.sub.delivery.wake
        if after is not None and (before is None or before.id != after.id):
            assert before is None, "a wake ends before the next begins"
            assert after.generation > self.generation, "each wake has a higher generation"
            self.past.append(after)

    def next_wake_id(self) -> str:
        self.wake_ids += 1
        return f"w_{self.wake_ids}"

    def positions(self) -> dict[str, Position | None]:
        return {name: link.acked for name, link in self.sub.links.items()}

    # -- what always holds -------------------------------------------------------------------

    @invariant()
    def generations_only_rise(self) -> None:
        assert self.sub.delivery.generation >= self.generation
        self.generation = self.sub.delivery.generation

    @invariant()
    def acknowledged_positions_never_go_back_nor_past_the_tail(self) -> None:
        for name, link in self.sub.links.items():
            acked = link.acked or START
            assert self.acked.get(name, START) <= acked <= link.tail
            self.acked[name] = acked

    @invariant()
    def pending_is_what_is_pending(self) -> None:
        assert set(self.sub.pending) == {n for n, li in self.sub.links.items() if li.is_pending}

    @invariant()
    def a_wake_knows_only_streams_that_are_linked(self) -> None:
        wake = self.sub.delivery.wake
        assert wake is None or wake.tails.keys() <= self.sub.links.keys()

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """A wake in flight is held, being sent, about to be sent, or can be claimed."""
        delivery = self.sub.delivery
        if delivery.wake is None:
            assert delivery == Delivery(delivery.generation)
            return
        assert delivery.wake.generation == delivery.generation
        if delivery.wake.lease_until_ms is None:
            assert delivery.wake.holder is None
            assert self.sub.pending
        else:
            assert self.sub.due_at_ms == delivery.wake.lease_until_ms
            is_claimed = self.sub.config.kind is SubscriptionKind.PULL_WAKE
            assert delivery.wake.holder is not None or not is_claimed


TestSubscription = SubscriptionMachine.TestCase
