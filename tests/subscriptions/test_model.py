"""One subscription, fact by fact: waking, leases, fencing, acknowledging, retrying."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.offsets import START, Position
from headrace.subscriptions.errors import Code, SubscriptionRefused
from headrace.subscriptions.model import (
    WAKE_STREAMS_MAX,
    Ack,
    Step,
    Subscription,
    SubscriptionConfig,
    SubscriptionKind,
    Wake,
    WebhookRetry,
    WorkerAnswer,
    apply,
    backoff_ms,
    decide_answer,
    decide_attempt,
    decide_claim,
    decide_delivered,
    decide_expiry,
    decide_failed,
    decide_release,
    decide_wake,
)

NOW_MS = 1_800_000_000_000
TTL_MS = 30_000
CONFIG = SubscriptionConfig(
    kind=SubscriptionKind.PULL_WAKE,
    pattern="events/*",
    streams=(),
    webhook_url=None,
    wake_stream="wake",
    lease_ttl_ms=TTL_MS,
    description=None,
)
WEBHOOK = replace(
    CONFIG, kind=SubscriptionKind.WEBHOOK, wake_stream=None, webhook_url="https://worker.example/"
)


def at(messages: int) -> Position:
    return Position(messages, messages * 10)


def subscription(config: SubscriptionConfig = CONFIG, **tails: int) -> Subscription:
    """One that follows streams with this many messages, none of them acknowledged."""
    made = Subscription("sub-1", config, "http://server.example", NOW_MS)
    for name, messages in tails.items():
        made.link(name, None, at(messages), explicit=False)
    return made


def take(subscription: Subscription, step: Step | SubscriptionRefused | None) -> None:
    assert isinstance(step, Step), step
    apply(subscription, step)


def woken(subscription: Subscription, wake_id: str = "w_1") -> Wake:
    take(subscription, decide_wake(subscription, wake_id))
    wake = subscription.delivery.wake
    assert wake is not None
    return wake


def claimed(subscription: Subscription, wake_id: str = "w_1") -> Wake:
    take(subscription, decide_claim(subscription, "worker-1", wake_id, NOW_MS))
    wake = subscription.delivery.wake
    assert wake is not None
    return wake


def attempted(subscription: Subscription) -> Wake:
    wake = woken(subscription)
    take(subscription, decide_attempt(subscription, NOW_MS))
    return wake


def answer(
    subscription: Subscription,
    wake: Wake,
    *acks: Ack,
    done: bool = False,
    now_ms: int = NOW_MS,
) -> Step | SubscriptionRefused:
    said = WorkerAnswer(wake.id, wake.generation, acks, done)
    return decide_answer(subscription, said, wake.generation, now_ms, lambda _, __: True)


def refusal(outcome: Step | SubscriptionRefused) -> SubscriptionRefused:
    assert isinstance(outcome, SubscriptionRefused), outcome
    return outcome


# -- links ---------------------------------------------------------------------------------------


def test_a_stream_that_existed_is_not_pending_until_it_grows() -> None:
    sub = subscription()
    sub.link("a", at(3), at(3), explicit=False)
    assert not sub.pending
    sub.advance("a", at(4))
    assert list(sub.pending) == ["a"]


def test_a_new_stream_is_pending_from_its_first_message_and_not_before() -> None:
    sub = subscription(a=0)
    assert not sub.pending
    assert sub.links["a"].acked_token == "-1"
    sub.advance("a", at(1))
    assert list(sub.pending) == ["a"]


def test_linking_again_keeps_what_was_acknowledged() -> None:
    sub = subscription()
    sub.link("a", at(1), at(2), explicit=False)
    sub.link("a", at(2), at(2), explicit=True)
    assert sub.links["a"].acked == at(1)


def test_removing_the_explicit_link_leaves_the_one_by_glob() -> None:
    sub = subscription(a=1)
    sub.link("a", None, at(1), explicit=True)
    sub.unlink_explicit("a")
    assert not sub.links["a"].explicit
    sub.link("b", None, at(1), explicit=True)
    sub.unlink_explicit("b")
    sub.unlink_explicit("never")
    assert list(sub.links) == ["a"]


def test_a_wake_forgets_a_stream_that_is_gone() -> None:
    """Else finishing the wake would acknowledge a new stream of the same name."""
    sub = subscription(WEBHOOK, a=5, b=1)
    wake = attempted(sub)
    sub.unlink("a")
    sub.link("a", None, at(5), explicit=False)
    take(sub, decide_delivered(sub, wake.id, done=True))
    assert sub.links["a"].acked is None
    assert list(sub.pending) == ["a"]


@pytest.mark.parametrize("config", [CONFIG, WEBHOOK])
def test_a_wake_that_nobody_has_ends_with_the_last_pending_stream(
    config: SubscriptionConfig,
) -> None:
    """Else the next append would find a wake in flight, and nobody would be told."""
    sub = subscription(config, a=1)
    woken(sub)
    sub.unlink("a")
    assert sub.delivery.wake is None
    sub.link("b", None, at(1), explicit=False)
    assert woken(sub, "w_2").generation == 2


def test_a_wake_that_is_held_outlives_its_streams() -> None:
    sub = subscription(a=1)
    wake = claimed(sub)
    sub.unlink("a")
    take(sub, answer(sub, wake, done=True))
    assert sub.delivery.wake is None


# -- waking --------------------------------------------------------------------------------------


def test_without_pending_work_nobody_is_woken() -> None:
    assert decide_wake(subscription(a=0), "w_1") is None


def test_there_is_one_wake_at_a_time() -> None:
    sub = subscription(a=1)
    woken(sub)
    sub.advance("a", at(2))
    assert decide_wake(sub, "w_2") is None


def test_a_wake_lists_pending_streams_first_and_a_bounded_number_of_them() -> None:
    count = WAKE_STREAMS_MAX + 5
    sub = subscription(CONFIG, quiet=0, loud=1, silent=0, louder=1)
    assert list(woken(sub).tails) == ["loud", "louder", "quiet", "silent"]
    assert len(woken(subscription(CONFIG, **{f"s-{n}": 1 for n in range(count)})).tails) == (
        WAKE_STREAMS_MAX
    )


def test_finishing_a_wake_that_could_not_list_everything_leaves_the_rest_pending() -> None:
    sub = subscription(WEBHOOK, **{f"s-{n}": 1 for n in range(WAKE_STREAMS_MAX + 5)})
    wake = attempted(sub)
    take(sub, decide_delivered(sub, wake.id, done=True))
    assert list(sub.pending) == [f"s-{WAKE_STREAMS_MAX + n}" for n in range(5)]


# -- claims --------------------------------------------------------------------------------------


def test_a_claim_takes_the_wake_that_was_announced() -> None:
    sub = subscription(a=1)
    wake = woken(sub)
    assert claimed(sub, "unused").id == wake.id
    assert sub.due_at_ms == NOW_MS + TTL_MS


def test_a_claim_may_come_before_the_wake() -> None:
    assert claimed(subscription(a=1), "w_9").id == "w_9"


def test_work_that_is_held_is_not_given_to_another() -> None:
    sub = subscription(a=1)
    claimed(sub)
    refused = refusal(decide_claim(sub, "worker-2", "w_2", NOW_MS))
    assert refused.code is Code.ALREADY_CLAIMED
    assert (refused.current_holder, refused.generation) == ("worker-1", 1)


def test_there_is_nothing_to_claim_when_everything_is_acknowledged() -> None:
    refused = refusal(decide_claim(subscription(a=0), "worker-1", "w_1", NOW_MS))
    assert refused.code is Code.NO_PENDING_WORK


def test_a_lease_that_runs_out_frees_the_work_for_a_new_generation() -> None:
    sub = subscription(a=1)
    old = claimed(sub)
    take(sub, decide_expiry(sub, NOW_MS + TTL_MS, 0.5))
    assert sub.delivery.wake is None
    assert sub.due_at_ms is None
    assert claimed(sub, "w_2").generation == 2
    assert refusal(answer(sub, old, done=True)).code is Code.FENCED


def test_an_announced_wake_waits_for_a_claim_without_a_lease() -> None:
    sub = subscription(a=1)
    woken(sub)
    assert sub.due_at_ms is None
    assert decide_expiry(sub, NOW_MS, 0.5) is None


def test_a_release_gives_the_work_back_unacknowledged() -> None:
    sub = subscription(a=1)
    wake = claimed(sub)
    take(sub, decide_release(sub, WorkerAnswer(wake.id, wake.generation), wake.generation))
    assert list(sub.pending) == ["a"]
    assert woken(sub, "w_2").generation == 2


# -- answers -------------------------------------------------------------------------------------


def test_an_answer_that_is_not_done_extends_the_lease() -> None:
    sub = subscription(a=2)
    wake = claimed(sub)
    take(sub, answer(sub, wake, Ack("a", at(1)), now_ms=NOW_MS + 20_000))
    assert sub.due_at_ms == NOW_MS + 20_000 + TTL_MS
    assert sub.links["a"].acked == at(1)
    assert sub.delivery.wake is not None
    assert sub.delivery.wake.holder == "worker-1"


def test_done_acknowledges_only_what_it_says() -> None:
    sub = subscription(a=2, b=1)
    wake = claimed(sub)
    take(sub, answer(sub, wake, Ack("a", at(2)), done=True))
    assert list(sub.pending) == ["b"]


def test_of_several_acks_for_a_stream_the_furthest_counts() -> None:
    sub = subscription(a=3)
    take(sub, answer(sub, claimed(sub), Ack("a", at(2)), Ack("a", at(1))))
    assert sub.links["a"].acked == at(2)


@pytest.mark.parametrize(
    "bad",
    [Ack("a", at(1)), Ack("a", at(4)), Ack("unknown", at(1))],
    ids=["regresses", "past the tail", "not followed"],
)
def test_one_bad_ack_and_none_is_applied(bad: Ack) -> None:
    sub = subscription()
    sub.link("a", at(2), at(3), explicit=False)
    sub.link("b", None, at(1), explicit=False)
    wake = claimed(sub)
    assert refusal(answer(sub, wake, Ack("b", at(1)), bad, done=True)).code is Code.INVALID_OFFSET
    assert sub.links["a"].acked == at(2)
    assert sub.links["b"].acked is None
    assert sub.delivery.wake == wake


def test_an_ack_inside_a_message_is_refused() -> None:
    sub = subscription(a=3)
    wake = claimed(sub)
    said = WorkerAnswer(wake.id, wake.generation, (Ack("a", at(1)),))
    outcome = decide_answer(sub, said, wake.generation, NOW_MS, lambda _, __: False)
    assert refusal(outcome).code is Code.INVALID_OFFSET


@pytest.mark.parametrize(
    ("wake_id", "generation", "token_generation"),
    [("w_0", 1, 1), ("w_1", 0, 1), ("w_1", 2, 1), ("w_1", 1, 0), ("w_1", 1, 2)],
)
@pytest.mark.parametrize("done", [False, True])
def test_all_three_names_of_a_wake_must_be_right(
    wake_id: str, generation: int, token_generation: int, done: bool
) -> None:
    sub = subscription(a=1)
    claimed(sub)
    said = WorkerAnswer(wake_id, generation, (Ack("a", at(1)),), done)
    before = sub.delivery
    for outcome in (
        decide_answer(sub, said, token_generation, NOW_MS, lambda _, __: True),
        decide_release(sub, said, token_generation),
    ):
        assert refusal(outcome).code is Code.FENCED
    assert sub.delivery == before
    assert sub.links["a"].acked is None


# -- webhooks ------------------------------------------------------------------------------------


def test_a_webhooks_lease_starts_when_it_is_sent() -> None:
    sub = subscription(WEBHOOK, a=1)
    woken(sub)
    before = sub.due_at_ms
    take(sub, decide_attempt(sub, NOW_MS))
    assert (before, sub.due_at_ms) == (None, NOW_MS + TTL_MS)
    assert decide_attempt(sub, NOW_MS) is None


def test_done_in_the_answer_acknowledges_the_tails_that_were_sent() -> None:
    sub = subscription(WEBHOOK, a=1, b=0)
    wake = attempted(sub)
    sub.advance("a", at(2))
    take(sub, decide_delivered(sub, wake.id, done=True))
    assert sub.links["a"].acked == at(1)
    assert sub.links["b"].acked == START
    assert list(sub.pending) == ["a"]
    assert woken(sub, "w_2").generation == 2


def test_a_webhook_that_was_taken_is_held_until_its_lease_runs_out() -> None:
    sub = subscription(WEBHOOK, a=1)
    wake = attempted(sub)
    take(sub, decide_delivered(sub, wake.id, done=False))
    assert sub.due_at_ms == NOW_MS + TTL_MS
    take(sub, decide_expiry(sub, NOW_MS + TTL_MS, 0.5))
    assert sub.delivery.wake is None
    assert not sub.is_failing


def test_a_failed_webhook_waits_and_is_sent_again_as_the_same_wake() -> None:
    sub = subscription(WEBHOOK, a=1)
    wake = attempted(sub)
    take(sub, decide_failed(sub, wake.id, NOW_MS, 0.5))
    assert sub.is_failing
    assert sub.delivery.retry == WebhookRetry(1, NOW_MS + 1000)
    assert sub.due_at_ms == NOW_MS + 1000
    assert decide_wake(sub, "w_2") is None
    take(sub, decide_attempt(sub, NOW_MS + 1000))
    assert sub.delivery.wake is not None
    assert sub.delivery.wake.id == wake.id
    assert sub.is_failing
    take(sub, decide_failed(sub, wake.id, NOW_MS + 1100, 0.5))
    assert sub.delivery.retry == WebhookRetry(2, NOW_MS + 3100)
    take(sub, decide_attempt(sub, NOW_MS + 3100))
    take(sub, decide_delivered(sub, wake.id, done=False))
    assert not sub.is_failing


def test_a_webhook_without_an_answer_within_its_lease_has_failed() -> None:
    """It waits like any other that failed; a new wake at once would hammer the receiver."""
    sub = subscription(WEBHOOK, a=1)
    wake = attempted(sub)
    take(sub, decide_expiry(sub, NOW_MS + TTL_MS, 0.5))
    assert sub.delivery.retry == WebhookRetry(1, NOW_MS + TTL_MS + 1000)
    assert decide_failed(sub, wake.id, NOW_MS + TTL_MS, 0.5) is None


def test_a_receiver_that_calls_back_has_the_webhook_even_if_its_answer_was_lost() -> None:
    sub = subscription(WEBHOOK, a=1)
    wake = attempted(sub)
    take(sub, decide_failed(sub, wake.id, NOW_MS, 0.5))
    take(sub, answer(sub, wake))
    assert not sub.is_failing
    assert decide_attempt(sub, NOW_MS) is None
    assert sub.due_at_ms == NOW_MS + TTL_MS


def test_a_callback_during_the_request_outranks_how_the_request_ends() -> None:
    sub = subscription(WEBHOOK, a=1)
    wake = attempted(sub)
    take(sub, answer(sub, wake))
    assert decide_failed(sub, wake.id, NOW_MS, 0.5) is None
    take(sub, answer(sub, wake, Ack("a", at(1)), done=True))
    assert decide_delivered(sub, wake.id, done=True) is None
    assert decide_failed(sub, wake.id, NOW_MS, 0.5) is None


@given(attempts=st.integers(1, 10_000), chance=st.floats(0, 1))
def test_a_retry_waits_one_to_sixty_seconds_within_a_fifth(attempts: int, chance: float) -> None:
    base = min(1000 * 2 ** min(attempts - 1, 10), 60_000)
    assert 0.8 * base <= backoff_ms(attempts, chance) <= 1.2 * base


def test_retries_double_up_to_a_minute() -> None:
    waits = [backoff_ms(attempts, 0.5) for attempts in range(1, 9)]
    assert waits == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]


# -- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        replace(CONFIG, pattern="events/**"),
        replace(CONFIG, pattern=None, streams=("events/*",)),
        replace(CONFIG, streams=("a",)),
        replace(CONFIG, wake_stream="other"),
        replace(CONFIG, lease_ttl_ms=1000),
        replace(CONFIG, description=""),
        WEBHOOK,
        replace(WEBHOOK, webhook_url="https://other.example/"),
    ],
)
def test_whatever_differs_in_a_configuration_differs_in_its_digest(
    other: SubscriptionConfig,
) -> None:
    assert other.digest() != CONFIG.digest()
    assert replace(CONFIG).digest() == CONFIG.digest()


def test_a_webhook_whose_streams_are_gone_is_not_sent_again() -> None:
    sub = subscription(WEBHOOK, a=1)
    attempted(sub)
    sub.unlink("a")
    take(sub, decide_expiry(sub, NOW_MS + TTL_MS, 0.5))
    assert sub.delivery.wake is None
    assert sub.delivery.retry is None
