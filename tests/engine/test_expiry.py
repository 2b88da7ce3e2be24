"""Expiry: the sweeper, renewals, live readers, and what a stream that ends leaves behind."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from headrace.engine.engine import Engine
from headrace.engine.expiry_queue import STALE_MIN
from headrace.engine.stream_runtime import Stream
from headrace.errors import HeadraceError, StreamDeleted, StreamNotFound
from headrace.protocol.expiry import FOREVER, Lifetime
from headrace.protocol.requests import Append, Create, ForkRequest
from headrace.protocol.stream import StreamState
from headrace.storage.base import Log
from headrace.storage.memory import MemoryLog, MemoryStorage
from headrace.testing.virtual_clock import START_MS, VirtualClock
from tests.engine.helpers import is_created, read

TTL_SECS = 10
SLIDING = Lifetime(ttl_secs=TTL_SECS)
ABSOLUTE = Lifetime(expires_at_ms=START_MS + TTL_SECS * 1000)


class Reader:
    """A live reader that only notes what it is told, and leaves when its stream is gone."""

    def __init__(self, engine: Engine, stream: Stream) -> None:
        self._engine, self._stream = engine, stream
        self.gone = 0
        engine.attach_reader(stream, self)

    def on_advance(self, stream: Stream) -> None:
        """New data is none of its concerns."""

    def on_gone(self, stream: Stream) -> None:
        self.gone += 1
        self.leave()

    def on_fault(self, fault: HeadraceError) -> None:
        """The test fails: see `pytest_runtest_call` in tests/conftest.py."""

    def leave(self) -> None:
        self._engine.detach_reader(self._stream, self)


class TracedLog(MemoryLog):
    """A log that can be watched for being let go: without slots, it can be weakly referenced."""


class TracedStorage(MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self.logs: weakref.WeakSet[TracedLog] = weakref.WeakSet()

    def new_log(self, state: StreamState, source: Log | None) -> MemoryLog:
        assert source is None or isinstance(source, MemoryLog)
        log = TracedLog(state.tail, source)
        self.logs.add(log)
        return log


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def engine(clock: VirtualClock) -> Engine:
    return Engine(MemoryStorage(), clock)


def create(engine: Engine, name: str, lifetime: Lifetime = FOREVER, **command: Any) -> Stream:
    outcomes: list[object] = []
    engine.create(name, Create(lifetime=lifetime, **command), outcomes.append)
    assert is_created(outcomes[0]), outcomes
    return engine.streams[name]


def exists(engine: Engine, name: str) -> bool:
    """Whether the engine still holds the stream; asking does not expire it."""
    return name in engine.streams


# -- the sweeper -------------------------------------------------------------------------------


@pytest.mark.parametrize("lifetime", [SLIDING, ABSOLUTE], ids=["sliding", "absolute"])
def test_a_stream_goes_when_its_time_is_over_and_not_before(
    engine: Engine, clock: VirtualClock, lifetime: Lifetime
) -> None:
    create(engine, "a", lifetime)
    clock.advance(ms=TTL_SECS * 1000 - 1)
    assert engine.housekeeping.run() == 0
    assert exists(engine, "a")
    clock.advance(ms=1)
    assert engine.housekeeping.run() == 1
    assert not exists(engine, "a")


def test_a_stream_whose_time_is_over_is_not_found_before_the_sweeper_came(
    engine: Engine, clock: VirtualClock
) -> None:
    create(engine, "a", SLIDING)
    clock.advance(secs=TTL_SECS)
    with pytest.raises(StreamNotFound):
        engine.find("a")
    assert engine.housekeeping.run() == 0


def test_a_stream_without_a_lifetime_stays(engine: Engine, clock: VirtualClock) -> None:
    create(engine, "a")
    clock.advance(secs=10**9)
    assert engine.housekeeping.run() == 0
    assert exists(engine, "a")


def test_a_sweep_removes_no_more_than_it_may_and_the_next_one_goes_on(
    engine: Engine, clock: VirtualClock
) -> None:
    for number in range(25):
        create(engine, f"s{number}", SLIDING)
    clock.advance(secs=TTL_SECS)
    assert [engine.housekeeping.run(10) for _ in range(4)] == [10, 10, 5, 0]


def test_streams_go_in_the_order_of_their_deadlines(engine: Engine, clock: VirtualClock) -> None:
    for secs in (30, 10, 20):
        create(engine, f"after {secs}", Lifetime(ttl_secs=secs))
    for secs in (10, 20, 30):
        clock.advance(secs=10)
        assert engine.housekeeping.run() == 1
        assert not exists(engine, f"after {secs}")


def test_the_successor_of_an_expired_stream_has_a_life_of_its_own(
    engine: Engine, clock: VirtualClock
) -> None:
    create(engine, "a", SLIDING)
    clock.advance(secs=TTL_SECS)
    successor = create(engine, "a", SLIDING)
    assert engine.housekeeping.run() == 0
    assert engine.find("a") is successor
    clock.advance(secs=TTL_SECS)
    assert engine.housekeeping.run() == 1


# -- renewals ----------------------------------------------------------------------------------


def test_reads_renew_a_sliding_lifetime(engine: Engine, clock: VirtualClock) -> None:
    stream = create(engine, "a", SLIDING)
    for _ in range(5):
        clock.advance(secs=TTL_SECS - 1)
        engine.touch(stream)
        assert engine.housekeeping.run() == 0
    clock.advance(secs=TTL_SECS)
    assert engine.housekeeping.run() == 1


def test_appends_renew_a_sliding_lifetime(engine: Engine, clock: VirtualClock) -> None:
    stream = create(engine, "a", SLIDING)
    for _ in range(5):
        clock.advance(secs=TTL_SECS - 1)
        engine.append(stream, Append(b"x", "application/octet-stream"), lambda _: None)
        assert engine.housekeeping.run() == 0
    clock.advance(secs=TTL_SECS)
    assert engine.housekeeping.run() == 1


@pytest.mark.parametrize(
    "refused",
    [Append(b"x", "image/png"), Append(b"", close=False, stream_seq=b"a")],
    ids=["content type", "stream seq"],
)
def test_a_refused_append_does_not_renew(
    engine: Engine, clock: VirtualClock, refused: Append
) -> None:
    stream = create(engine, "a", SLIDING)
    engine.append(stream, Append(b"x", stream_seq=b"b"), lambda _: None)
    clock.advance(secs=TTL_SECS - 1)
    outcomes: list[object] = []
    engine.append(stream, refused, outcomes.append)
    assert isinstance(outcomes[0], Exception)
    clock.advance(secs=1)
    assert engine.housekeeping.run() == 1


def test_nothing_renews_an_absolute_expiry(engine: Engine, clock: VirtualClock) -> None:
    stream = create(engine, "a", ABSOLUTE)
    clock.advance(secs=TTL_SECS - 1)
    engine.touch(stream)
    engine.append(stream, Append(b"x"), lambda _: None)
    clock.advance(secs=1)
    assert engine.housekeeping.run() == 1


def test_renewals_do_not_keep_others_from_going(engine: Engine, clock: VirtualClock) -> None:
    streams = [create(engine, f"s{number}", SLIDING) for number in range(100)]
    clock.advance(secs=TTL_SECS - 1)
    for stream in streams[::2]:
        engine.touch(stream)
    clock.advance(secs=1)
    assert engine.housekeeping.run() == 50
    assert [exists(engine, s.state.name) for s in streams] == [True, False] * 50


def test_a_stream_renewed_often_stands_in_the_queue_once(
    engine: Engine, clock: VirtualClock
) -> None:
    stream = create(engine, "a", SLIDING)
    for _ in range(1000):
        clock.advance(secs=TTL_SECS - 1)
        engine.touch(stream)
        engine.housekeeping.run()
    assert len(engine.expiring) == engine.expiring.entries == 1


def test_a_deleted_stream_leaves_the_queue_at_once(engine: Engine, clock: VirtualClock) -> None:
    create(engine, "a", SLIDING)
    create(engine, "b", SLIDING)
    engine.delete("a", lambda _: None)
    assert len(engine.expiring) == 1
    clock.advance(secs=TTL_SECS)
    assert engine.housekeeping.run() == 1
    assert not exists(engine, "b")


def test_what_deleted_streams_leave_in_the_queue_is_bounded(engine: Engine) -> None:
    staying = [create(engine, f"s{number}", SLIDING) for number in range(10)]
    for _ in range(3 * STALE_MIN):
        create(engine, "a", SLIDING)
        engine.delete("a", lambda _: None)
        assert engine.expiring.entries <= 2 * (len(staying) + 1) + STALE_MIN
    assert len(engine.expiring) == len(staying)


# -- live readers ------------------------------------------------------------------------------


def test_a_live_reader_keeps_a_sliding_lifetime_from_ending(
    engine: Engine, clock: VirtualClock
) -> None:
    stream = create(engine, "a", SLIDING)
    reader = Reader(engine, stream)
    for _ in range(5):
        clock.advance(secs=3 * TTL_SECS)
        assert engine.housekeeping.run() == 0
        assert engine.find("a") is stream
    assert reader.gone == 0


@pytest.mark.parametrize("swept", [False, True], ids=["not swept meanwhile", "swept meanwhile"])
def test_the_lifetime_starts_again_when_the_last_reader_leaves(
    engine: Engine, clock: VirtualClock, swept: bool
) -> None:
    stream = create(engine, "a", SLIDING)
    first, last = Reader(engine, stream), Reader(engine, stream)
    clock.advance(secs=5 * TTL_SECS)
    if swept:
        engine.housekeeping.run()
    first.leave()
    clock.advance(secs=TTL_SECS)
    last.leave()
    clock.advance(ms=TTL_SECS * 1000 - 1)
    assert engine.housekeeping.run() == 0
    clock.advance(ms=1)
    assert engine.housekeeping.run() == 1
    assert engine.reader_count == 0


@pytest.mark.parametrize("by", ["sweep", "find"])
def test_an_absolute_expiry_ends_live_readers(engine: Engine, clock: VirtualClock, by: str) -> None:
    stream = create(engine, "a", ABSOLUTE)
    readers = [Reader(engine, stream) for _ in range(3)]
    clock.advance(secs=TTL_SECS)
    if by == "sweep":
        assert engine.housekeeping.run() == 1
    else:
        with pytest.raises(StreamNotFound):
            engine.find("a")
    assert [reader.gone for reader in readers] == [1, 1, 1]
    assert engine.reader_count == 0


# -- forks -------------------------------------------------------------------------------------


def test_an_expired_source_is_kept_for_its_fork_and_goes_with_it(
    engine: Engine, clock: VirtualClock
) -> None:
    create(engine, "source", SLIDING, body=b"inherited")
    fork = create(
        engine, "fork", Lifetime(ttl_secs=3 * TTL_SECS), fork=ForkRequest("source", None, 0)
    )
    clock.advance(secs=TTL_SECS)
    assert engine.housekeeping.run() == 1
    with pytest.raises(StreamDeleted):
        engine.find("source")
    assert read(engine, fork, engine.start_position(fork, "-1")).data == b"inherited"
    clock.advance(secs=2 * TTL_SECS)
    assert engine.housekeeping.run() == 1
    assert not exists(engine, "source")


@pytest.mark.parametrize("ended", ["deleted", "expired"])
def test_a_source_is_gone_as_soon_as_its_last_fork_has_expired(
    engine: Engine, clock: VirtualClock, ended: str
) -> None:
    """However deep the forks are, and before the sweeper comes."""
    forever = Lifetime(ttl_secs=10 * TTL_SECS)
    create(engine, "source", SLIDING if ended == "expired" else forever)
    create(engine, "fork", SLIDING, fork=ForkRequest("source", None, 0))
    create(engine, "deep", Lifetime(ttl_secs=2 * TTL_SECS), fork=ForkRequest("fork", None, 0))
    create(engine, "other", SLIDING, fork=ForkRequest("source", None, 0))
    if ended == "deleted":
        engine.delete("source", lambda _: None)
    clock.advance(secs=TTL_SECS)
    with pytest.raises(StreamDeleted):
        engine.find("source")
    clock.advance(secs=TTL_SECS)
    with pytest.raises(StreamNotFound):
        engine.find("source")
    assert not any(exists(engine, name) for name in ("source", "fork", "deep", "other"))
    assert engine.housekeeping.run() == 0
    create(engine, "source")


def test_a_fork_inherits_the_lifetime_and_its_own_start(
    engine: Engine, clock: VirtualClock
) -> None:
    create(engine, "source", SLIDING)
    clock.advance(secs=TTL_SECS - 1)
    create(engine, "fork", fork=ForkRequest("source", None, 0))
    clock.advance(secs=1)
    assert engine.housekeeping.run() == 1
    assert exists(engine, "fork")
    clock.advance(secs=TTL_SECS - 1)
    assert engine.housekeeping.run() == 1


# -- what is left ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lifetime", [FOREVER, SLIDING, ABSOLUTE], ids=["no", "sliding", "absolute"]
)
def test_a_deleted_stream_gives_its_bytes_back_before_its_deadline(
    clock: VirtualClock, lifetime: Lifetime
) -> None:
    storage = TracedStorage()
    engine = Engine(storage, clock)
    held = len(storage.logs)
    for _ in range(20):
        create(engine, "a", lifetime, body=b"x" * 1000)
        engine.delete("a", lambda _: None)
    gc.collect()
    assert len(storage.logs) == held
