"""The registry's bounds: how long it gets, how often it starts over, and what it then says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.engine.engine import Engine
from headrace.engine.registry import STALE_MESSAGES_MIN
from headrace.engine.stream_runtime import Stream
from headrace.errors import HeadraceError, OffsetTrimmed
from headrace.protocol.expiry import Lifetime
from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.offsets import BEGINNING, START, Position
from headrace.protocol.requests import Create, ForkRequest
from headrace.storage.memory import MemoryStorage
from headrace.testing.virtual_clock import VirtualClock
from tests.engine.helpers import read


def ignore(_: object) -> None:
    """The outcome is not what the test is about."""


class Churning:
    """An engine with some streams that stay, and others that come and go."""

    def __init__(self, staying: int) -> None:
        self.clock = VirtualClock()
        self.engine = Engine(MemoryStorage(), self.clock)
        self.registry: Stream = self.engine.streams[REGISTRY_NAME]
        self.longest = 0
        self.compactions = 0
        self._trim_offset = START
        for number in range(staying):
            self.engine.create(f"stays/{number}", Create(), ignore)
        self._note()

    def churn(self, streams: int) -> None:
        for number in range(streams):
            self.engine.create(f"goes/{number}", Create(), ignore)
            self._note()
            self.engine.delete(f"goes/{number}", ignore)
            self._note()

    def _note(self) -> None:
        state = self.registry.state
        self.longest = max(self.longest, state.tail.messages - state.trim_offset.messages)
        if state.trim_offset != self._trim_offset:
            self.compactions += 1
        self._trim_offset = state.trim_offset

    def messages(self, start: Position | str = BEGINNING) -> list[dict[str, Any]]:
        position = self.engine.start_position(self.registry, start)
        found: list[dict[str, Any]] = []
        while True:
            chunk = read(self.engine, self.registry, position)
            found += json.loads(b"[" + chunk.data[:-1] + b"]")
            position = chunk.end
            if chunk.up_to_date:
                return found


def existing(messages: list[dict[str, Any]]) -> set[str]:
    names: set[str] = set()
    for message in messages:
        insert = message["headers"]["operation"] == "insert"
        (names.add if insert else names.discard)(message["key"])
    return names


@pytest.mark.parametrize("staying", [0, 10, 3000])
def test_it_is_never_longer_than_twice_what_it_must_say(staying: int) -> None:
    churning = Churning(staying)
    churning.churn(5000)
    assert churning.compactions > 0
    assert churning.longest <= 2 * (staying + 1) + STALE_MESSAGES_MIN + 1


@pytest.mark.parametrize("staying", [0, 10, 3000])
def test_it_starts_over_seldom_enough_to_cost_little(staying: int) -> None:
    churning = Churning(staying)
    churning.churn(5000)
    # Between two compactions lie at least as many changes as one of them writes.
    assert churning.compactions <= 2 * 5000 // (staying + STALE_MESSAGES_MIN - 1) + 1


@pytest.mark.parametrize("staying", [0, 10, 3000])
def test_what_is_left_tells_exactly_which_streams_exist(staying: int) -> None:
    churning = Churning(staying)
    churning.churn(2500)
    assert churning.compactions > 0
    assert existing(churning.messages()) == set(churning.engine.streams) - {REGISTRY_NAME}


def test_few_changes_do_not_make_it_start_over() -> None:
    churning = Churning(10)
    churning.churn(400)
    assert churning.compactions == 0
    assert len(churning.messages(START)) == 10 + 2 * 400


def test_its_memory_shrinks_with_it() -> None:
    churning = Churning(10)
    churning.churn(10_000)
    engine, log = churning.engine, churning.registry.log
    assert engine.stored.total == 0, "what the registry says is no payload"
    assert log.stored_bytes < 300 * churning.longest


def test_an_offset_before_its_trim_offset_is_refused_with_it() -> None:
    churning = Churning(1)
    before = churning.registry.state.tail
    churning.churn(2000)
    for start in (START, before):
        with pytest.raises(OffsetTrimmed) as refused:
            churning.engine.start_position(churning.registry, start)
        assert refused.value.earliest_offset == churning.registry.state.trim_offset.token()


def test_its_trim_offset_and_tail_only_move_forward() -> None:
    churning = Churning(5)
    seen = []
    for _ in range(60):
        churning.churn(50)
        seen.append((churning.registry.state.trim_offset, churning.registry.state.tail))
    assert seen == sorted(seen)
    assert all(trim_offset <= tail for trim_offset, tail in seen)


def test_an_expired_stream_is_announced_as_deleted() -> None:
    churning = Churning(0)
    churning.engine.create("short", Create(lifetime=Lifetime(ttl_secs=1)), ignore)
    churning.clock.advance(secs=1)
    churning.engine.housekeeping.run()
    assert [message["headers"]["operation"] for message in churning.messages()] == [
        "insert",
        "delete",
    ]


def test_a_source_kept_for_its_forks_is_not_announced_again() -> None:
    churning = Churning(0)
    engine = churning.engine
    engine.create("source", Create(), ignore)
    engine.create("fork", Create(fork=ForkRequest("source", None, 0)), ignore)
    engine.delete("source", ignore)
    churning.churn(1000)
    assert churning.compactions > 0
    assert existing(churning.messages()) == {"fork"}


class Follower:
    """A live reader of the registry that reads on at every call."""

    def __init__(self, churning: Churning) -> None:
        self._churning = churning
        self._position = churning.registry.visible
        self.messages: list[dict[str, Any]] = []
        churning.engine.attach_reader(churning.registry, self)

    def on_advance(self, stream: Stream) -> None:
        assert self._position >= stream.state.trim_offset, "history went before it was read"
        while self._position != stream.visible:
            chunk = read(self._churning.engine, stream, self._position)
            self.messages += json.loads(b"[" + chunk.data[:-1] + b"]")
            self._position = chunk.end

    def on_gone(self, stream: Stream) -> None:
        raise AssertionError("the registry does not go")

    def on_fault(self, fault: HeadraceError) -> None:
        """The test fails: see `pytest_runtest_call` in tests/conftest.py."""


def test_a_reader_at_its_tail_misses_nothing_through_compactions() -> None:
    churning = Churning(3)
    follower = Follower(churning)
    churning.churn(2000)
    assert churning.compactions > 0
    changes = [
        (message["key"], message["headers"]["operation"])
        for message in follower.messages
        if message["key"].startswith("goes/")
    ]
    once = [(f"goes/{n}", operation) for n in range(2000) for operation in ("insert", "delete")]
    assert changes == once
