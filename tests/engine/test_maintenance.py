"""Long work is done a slice at a time, and what happens between two slices is not lost."""

from __future__ import annotations

from headrace.engine.engine import Engine
from headrace.engine.feed import FLUSHED_AT_ONCE
from headrace.engine.housekeeping import EXPIRED_AT_ONCE_MAX
from headrace.engine.maintenance import Maintenance
from headrace.engine.registry import COMPACTED_AT_ONCE, STALE_MESSAGES_MIN
from headrace.errors import BucketNotFound
from headrace.protocol.expiry import Lifetime
from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.requests import Create
from headrace.testing.virtual_clock import VirtualClock
from tests.engine.helpers import announced, delete, new_engine, put, registry_messages

BRIEF = Create(lifetime=Lifetime(ttl_secs=10))


def sliced(engine: Engine) -> Engine:
    """As a server has it: slices wait until they are called for."""
    engine.maintenance.wake = lambda: None
    return engine


def existing(engine: Engine) -> set[str]:
    names: set[str] = set()
    for operation, name in announced(registry_messages(engine)):
        (names.add if operation == "insert" else names.discard)(name)
    return names


def test_steps_take_turns_until_each_is_done() -> None:
    maintenance, done = Maintenance(), ""
    maintenance.wake = lambda: None

    def step(name: str, count: int) -> bool:
        nonlocal done
        done += name
        return done.count(name) < count

    maintenance.add(lambda: step("a", 3))
    maintenance.add(lambda: step("b", 2))
    while maintenance.run():
        pass
    assert done == "ababa"
    assert not maintenance.run()


def compacting(engine: Engine, staying: int) -> int:
    """Streams come and go until the registry begins to compact; how long it is then."""
    for number in range(staying):
        put(engine, f"stays/{number}")
    while not engine.maintenance:
        put(engine, "goes")
        delete(engine, "goes")
    return engine.streams[REGISTRY_NAME].state.tail.messages


def test_the_registry_is_compacted_a_slice_at_a_time() -> None:
    engine = sliced(new_engine())
    before = compacting(engine, 3 * COMPACTED_AT_ONCE)
    registry = engine.streams[REGISTRY_NAME]
    turns = 0
    more = True
    while more:
        length = registry.state.tail.messages
        more = engine.maintenance.run()
        assert registry.state.tail.messages - length <= COMPACTED_AT_ONCE
        turns += 1
    assert turns >= 4
    assert registry.state.trim_offset.messages == before
    assert existing(engine) == {f"stays/{number}" for number in range(3 * COMPACTED_AT_ONCE)}


def test_what_happens_while_the_registry_is_compacted_is_told() -> None:
    engine = sliced(new_engine())
    compacting(engine, 2 * COMPACTED_AT_ONCE)
    engine.maintenance.run()
    delete(engine, "stays/0")  # it was said once more
    delete(engine, f"stays/{2 * COMPACTED_AT_ONCE - 1}")  # it was to be
    put(engine, "new")
    delete(engine, "stays/1")
    put(engine, "stays/1")
    assert existing(engine) == set(engine.streams) - {REGISTRY_NAME}
    while engine.maintenance.run():
        pass
    assert existing(engine) == set(engine.streams) - {REGISTRY_NAME}


def test_the_registry_is_not_compacted_twice_at_once() -> None:
    engine = sliced(new_engine())
    compacting(engine, 10)
    for _ in range(2 * STALE_MESSAGES_MIN):
        put(engine, "goes")
        delete(engine, "goes")
    assert not engine.maintenance.run()
    assert existing(engine) == {f"stays/{number}" for number in range(10)}


def test_many_streams_that_expire_together_go_a_slice_at_a_time() -> None:
    clock = VirtualClock()
    engine = sliced(new_engine(clock))
    count = 3 * EXPIRED_AT_ONCE_MAX
    for number in range(count):
        put(engine, f"s{number}", BRIEF)
    clock.advance(secs=60)
    assert engine.housekeeping.run() == EXPIRED_AT_ONCE_MAX
    left = len(engine.streams)
    while engine.maintenance.run():
        assert left - len(engine.streams) <= EXPIRED_AT_ONCE_MAX
        left = len(engine.streams)
    assert set(engine.streams) == {REGISTRY_NAME}
    assert engine.housekeeping.run() == 0


def test_many_windows_that_were_renewed_are_looked_at_a_slice_at_a_time() -> None:
    clock = VirtualClock()
    engine = sliced(new_engine(clock))
    for number in range(3 * EXPIRED_AT_ONCE_MAX):
        put(engine, f"s{number}", BRIEF)
    clock.advance(secs=9)
    for stream in engine.streams.values():
        engine.touch(stream)
    clock.advance(secs=9)
    assert engine.housekeeping.run() == 0
    turns = 1
    while engine.maintenance.run():
        turns += 1
    assert turns >= 2
    assert len(engine.streams) == 3 * EXPIRED_AT_ONCE_MAX + 1


def test_a_feed_writes_down_very_many_changes_a_part_at_a_time() -> None:
    engine, prompts = new_engine(), 0

    def prompt() -> None:
        nonlocal prompts
        prompts += 1

    engine.feeds.prompt = prompt
    engine.buckets.create("bucket", lambda _: None)
    for number in range(2 * FLUSHED_AT_ONCE + 1):
        put(engine, f"/bucket/{number}")
    feed = engine.buckets.find("bucket").stream
    lengths = []
    for _ in range(4):
        engine.feeds.flush()
        lengths.append(feed.state.tail.messages)
    assert lengths == [FLUSHED_AT_ONCE, 2 * FLUSHED_AT_ONCE, *[2 * FLUSHED_AT_ONCE + 1] * 2]
    assert prompts == 2, "for each part that was left"


def test_a_bucket_of_very_many_expired_streams_is_deleted_in_slices() -> None:
    clock = VirtualClock()
    engine = sliced(new_engine(clock))
    engine.buckets.create("bucket", lambda _: None)
    for number in range(3 * EXPIRED_AT_ONCE_MAX):
        put(engine, f"/bucket/{number}", BRIEF)
    clock.advance(secs=60)
    answers: list[object] = []
    engine.buckets.delete("bucket", answers.append)
    assert not answers
    assert len(engine.streams) > EXPIRED_AT_ONCE_MAX
    while engine.maintenance.run():
        pass
    assert len(answers) == 1
    assert not isinstance(answers[0], BucketNotFound)
    assert set(engine.streams) == {REGISTRY_NAME}
