"""Items made ahead of their use arrive as they would without."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headrace.spark.streams.prefetch import prefetched


def test_items_arrive_in_order_and_then_what_was_raised() -> None:
    def items() -> Iterator[int]:
        yield from range(100)
        raise ValueError("broken")

    found: list[int] = []
    with pytest.raises(ValueError, match="broken"):
        found.extend(prefetched(items(), 3))
    assert found == list(range(100))
    assert list(prefetched(iter([]), 3)) == []


def test_no_more_is_made_than_the_depth_and_none_after_the_end() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            made.append(number)
            yield number

    taken = prefetched(items(), 2)
    assert isinstance(taken, Iterator)
    assert next(taken) == 0
    taken.close()  # type: ignore[attr-defined]  # it is a generator
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]
    # One taken, two waiting, one held; what was waiting is taken to make room for the end.
    assert len(made) < 10
