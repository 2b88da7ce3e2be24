"""What counts as use of a stream whose window slides, and what does not."""

from __future__ import annotations

import pytest

from headrace.engine.engine import Engine
from headrace.protocol.expiry import Lifetime
from headrace.protocol.producers import ProducerHeaders
from headrace.protocol.requests import Append, Create
from headrace.protocol.stream import AlreadyClosed, Repeated
from headrace.testing.virtual_clock import VirtualClock
from tests.engine.helpers import TEXT, Recorder, new_engine, put

TTL_SECS = 10
SLIDING = Create(content_type=TEXT, lifetime=Lifetime(ttl_secs=TTL_SECS))
PRODUCED = Append(b"x", TEXT, producer=ProducerHeaders(b"p", 0, 0))
CLOSING = Append(b"", close=True)


def append(engine: Engine, command: Append) -> object:
    outcomes: list[object] = []
    engine.append(engine.find("a"), command, outcomes.append)
    return outcomes[0]


@pytest.mark.parametrize(("command", "kind"), [(PRODUCED, Repeated), (CLOSING, AlreadyClosed)])
def test_a_repeat_that_changes_nothing_is_use_all_the_same(command: Append, kind: type) -> None:
    clock = VirtualClock()
    engine = new_engine(clock)
    put(engine, "a", SLIDING)
    append(engine, command)
    for _ in range(3):
        clock.advance(secs=TTL_SECS - 1)
        assert type(append(engine, command)) is kind
    clock.advance(secs=TTL_SECS)
    assert engine.housekeeping.run() == 1


def test_a_watcher_is_no_use() -> None:
    """A subscription must not keep alive what nobody reads or writes."""
    clock = VirtualClock()
    engine = new_engine(clock)
    put(engine, "a", SLIDING)
    watcher = Recorder(engine, "a")
    watcher.leave()
    watcher.stream.attach_watcher(watcher)
    clock.advance(secs=TTL_SECS)
    assert engine.housekeeping.run() == 1
    assert watcher.gone == 1
