"""Group commit: who is told what, and when."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from headrace.storage.base import Entry
from headrace.storage.committer import Committer
from headrace.testing.simulated_loop import SimulatedLoop


@pytest.mark.parametrize("seed", range(20))
def test_whoever_settles_while_others_are_told_waits_for_them(seed: int) -> None:
    """What is asked again at once would otherwise be asked for ever."""
    loop = SimulatedLoop(Random(seed))
    told: list[str] = []
    committer: Committer[str] = Committer(loop.as_loop, "test", lambda work: None, loop.lane)

    def committed(entries: Sequence[Entry]) -> None:
        told.extend(entry[0] for entry in entries)

    def failed(reason: object) -> None:
        pytest.fail(str(reason))

    def look() -> None:
        told.append("looked")
        if "last" not in told:
            committer.when_durable(look, failed)

    committer.start(committed, failed)
    committer.add("first", ("first", None, None))
    committer.when_durable(look, failed)
    committer.add("last", ("last", None, None))
    loop.run()
    assert loop.errors == []
    assert told == ["first", "looked", "last", "looked"]
    assert committer.is_idle
