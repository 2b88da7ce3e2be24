"""Work beside the event loop rests in between, unless it is pressed."""

from __future__ import annotations

from itertools import count

import pytest

from headrace.storage.file import throttle
from headrace.storage.file.throttle import Throttle


@pytest.mark.parametrize(("pressed", "rests"), [(False, 4), (True, 0)])
def test_it_rests_after_each_slice_unless_it_is_pressed(
    pressed: bool, rests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested: list[float] = []
    ticks = count()
    monkeypatch.setattr(throttle, "monotonic", lambda: next(ticks) * throttle.SLICE_SECS)
    monkeypatch.setattr(throttle, "sleep", rested.append)
    assert list(Throttle(lambda: pressed).each("abcd")) == list("abcd")
    assert rested == [throttle.REST_SECS] * rests


def test_a_worker_that_becomes_pressed_goes_on_without_rests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rested: list[float] = []
    ticks = count()
    monkeypatch.setattr(throttle, "monotonic", lambda: next(ticks) * throttle.SLICE_SECS)
    monkeypatch.setattr(throttle, "sleep", rested.append)
    assert list(Throttle(lambda: next(ticks) > 6).each("abcdef")) == list("abcdef")
    assert 0 < len(rested) < 6
