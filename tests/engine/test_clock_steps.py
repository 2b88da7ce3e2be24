"""A wall clock that is set while the server runs: what follows it, and what does not."""

from __future__ import annotations

import pytest

from headrace.engine.engine import Engine
from headrace.errors import StreamNotFound
from headrace.protocol.expiry import Lifetime
from headrace.protocol.requests import Create
from headrace.storage.memory import MemoryStorage
from headrace.testing.virtual_clock import START_MS, VirtualClock
from tests.engine.helpers import TEXT, Recorder, post, put

TTL_SECS = 10
DAY = 24 * 3600
SLIDING = Create(content_type=TEXT, lifetime=Lifetime(ttl_secs=TTL_SECS))
ABSOLUTE = Create(content_type=TEXT, lifetime=Lifetime(expires_at_ms=START_MS + 1000 * TTL_SECS))
STEPS = pytest.mark.parametrize("secs", [DAY, -DAY], ids=["forward", "back"])


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def engine(clock: VirtualClock) -> Engine:
    return Engine(MemoryStorage(), clock)


@STEPS
@pytest.mark.parametrize("used", ["created", "written", "read", "followed"])
def test_a_window_lasts_as_long_as_it_should(
    engine: Engine, clock: VirtualClock, secs: int, used: str
) -> None:
    put(engine, "a", SLIDING)
    clock.step(secs=secs)
    if used == "written":
        post(engine, "a", b"x")
    elif used == "read":
        engine.touch(engine.find("a"))
    elif used == "followed":
        Recorder(engine, "a").leave()
    clock.advance(ms=1000 * TTL_SECS - 1)
    assert engine.housekeeping.run() == 0
    engine.find("a")
    clock.advance(ms=1)
    with pytest.raises(StreamNotFound):
        engine.find("a")


def test_an_absolute_deadline_follows_the_wall_clock(engine: Engine, clock: VirtualClock) -> None:
    put(engine, "a", ABSOLUTE)
    clock.step(secs=-DAY)
    clock.advance(secs=2 * TTL_SECS)
    assert engine.housekeeping.run() == 0
    clock.step(secs=DAY)
    assert engine.housekeeping.run() == 1


def test_both_kinds_of_deadline_end_in_one_sweep(engine: Engine, clock: VirtualClock) -> None:
    for number in range(4):
        put(engine, f"s{number}", SLIDING)
        put(engine, f"a{number}", ABSOLUTE)
    clock.advance(secs=TTL_SECS)
    assert len(list(engine.expiring.over(engine.now()))) == 8
    assert [engine.housekeeping.run(3) for _ in range(4)] == [3, 3, 2, 0]


@STEPS
def test_a_clock_that_was_set_back_hides_no_change_from_a_feed(
    engine: Engine, clock: VirtualClock, secs: int
) -> None:
    """After a crash a feed finds what it has not told by the times of the last writes."""
    engine.buckets.create("b", lambda _: None)
    put(engine, "/b/a")
    engine.housekeeping.run()
    clock.step(secs=secs)
    post(engine, "/b/a", b"x")
    put(engine, "/b/new")
    feed = engine.buckets.find("b").stream
    for name in ("/b/a", "/b/new"):
        assert engine.find(name).state.written_ms >= feed.state.written_ms
