"""Exactly once, both ways, through kill -9 of driver, server and Postgres."""

from __future__ import annotations

import pytest

from tests.spark import kills
from tests.spark.kills import Outcome


@pytest.mark.slow
def test_what_arrives_is_what_was_sent_though_every_part_is_killed_twice() -> None:
    outcomes = kills.run(each=2, seed=5)
    assert all(outcome.is_exact for outcome in outcomes.values()), outcomes
    assert all(outcome.sent > 1000 for outcome in outcomes.values()), outcomes


def test_the_judge_sees_what_is_missing_doubled_or_out_of_order() -> None:
    assert Outcome.of([1, 2, 3], [1, 2, 3]).is_exact
    assert Outcome.of([1, 2, 3], [1, 3]) == Outcome(3, 1, 0, False)
    assert Outcome.of([1, 2, 3], [1, 2, 2, 3]) == Outcome(3, 0, 1, False)
    assert not Outcome.of([1, 2, 3], [1, 3, 2]).is_exact
