"""Sliding windows and fixed deadlines."""

from __future__ import annotations

import pytest

from headrace.protocol.expiry import FOREVER, Lifetime, Moment

SLIDING = Lifetime(ttl_secs=10)
FIXED = Lifetime(expires_at_ms=50_000)


@pytest.mark.parametrize(
    ("lifetime", "touched_ms", "deadline_ms"),
    [(SLIDING, 0, 10_000), (SLIDING, 7_000, 17_000), (FIXED, 0, 50_000), (FIXED, 49_999, 50_000),
     (FOREVER, 10**15, None), (Lifetime(ttl_secs=0), 5, 5)],
)  # fmt: skip
def test_only_a_sliding_window_moves_with_use(
    lifetime: Lifetime, touched_ms: int, deadline_ms: int | None
) -> None:
    assert lifetime.deadline_ms(touched_ms) == deadline_ms


@pytest.mark.parametrize("lifetime", [SLIDING, FIXED, Lifetime(ttl_secs=0)])
def test_a_stream_is_over_at_its_deadline_and_not_before(lifetime: Lifetime) -> None:
    deadline_ms = lifetime.deadline_ms(0)
    assert deadline_ms is not None
    assert lifetime.is_over(0, Moment(deadline_ms, deadline_ms))
    assert not lifetime.is_over(0, Moment(deadline_ms - 1, deadline_ms - 1))


def test_what_lives_for_ever_is_never_over() -> None:
    assert not FOREVER.is_over(0, Moment(10**18, 10**18))


@pytest.mark.parametrize(
    ("source", "wish", "lifetime"),
    [(SLIDING, FOREVER, SLIDING), (SLIDING, FIXED, FIXED), (FOREVER, SLIDING, SLIDING),
     (FOREVER, FOREVER, FOREVER)],
)  # fmt: skip
def test_a_fork_has_the_lifetime_it_asks_for_or_else_its_sources(
    source: Lifetime, wish: Lifetime, lifetime: Lifetime
) -> None:
    assert source.inherit(wish) == lifetime
