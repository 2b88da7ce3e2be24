"""Exactly once, both ways, through kill -9 of driver, worker, server and Postgres."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.spark.cluster import Cluster
from tests.spark.kills import KINDS, Campaign, Outcome


@pytest.mark.slow
def test_what_arrives_is_what_was_sent_though_every_part_is_killed_twice(
    spark: SparkSession, cluster: Cluster
) -> None:
    with Campaign(cluster, seed=5) as campaign:
        outcomes = campaign.fight(2 * KINDS)
        assert all(outcome.is_exact for outcome in outcomes.values()), outcomes
        assert all(outcome.sent > 100 for outcome in outcomes.values()), outcomes
        assert campaign.repeat_without(spark).duplicated > 0


def test_the_judge_sees_what_is_missing_doubled_or_out_of_order() -> None:
    sent = {"a": [1, 2, 3], "b": [1]}
    assert Outcome.of(sent, sent).is_exact
    assert Outcome.of(sent, {"a": [1, 3], "b": [1]}) == Outcome(4, 1, 0, False)
    assert Outcome.of(sent, {"a": [1, 2, 2, 3], "b": [1]}) == Outcome(4, 0, 1, False)
    assert not Outcome.of(sent, {"a": [1, 3, 2], "b": [1]}).is_exact
