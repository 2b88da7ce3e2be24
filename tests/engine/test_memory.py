"""Memory accounting: what is counted is what is held, and a limit refuses before it is passed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.engine.engine import Bounds, Deleted, Engine
from headrace.errors import MemoryFull, Overloaded, StreamFull
from headrace.limits import Limits
from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.producers import ProducerHeaders
from headrace.protocol.requests import Append, Create, ForkRequest
from headrace.protocol.stream import Appended
from headrace.storage.memory import MemoryStorage
from headrace.testing.virtual_clock import VirtualClock
from tests.engine.helpers import is_created

JSON = "application/json"


def create(engine: Engine, name: str, command: Create | None = None) -> object:
    outcomes: list[object] = []
    engine.create(name, command or Create(), outcomes.append)
    return outcomes[0]


def append(engine: Engine, name: str, command: Append) -> object:
    outcomes: list[object] = []
    engine.append(engine.find(name), command, outcomes.append)
    return outcomes[0]


def delete(engine: Engine, name: str) -> object:
    outcomes: list[object] = []
    engine.delete(name, outcomes.append)
    return outcomes[0]


def held_bytes(engine: Engine) -> int:
    """What the logs hold, but for the registry: what that says is no client's payload."""
    streams = (stream for name, stream in engine.streams.items() if name != REGISTRY_NAME)
    return sum(stream.log.stored_bytes for stream in streams)


def with_room_for(payload: int, **limits: Any) -> Engine:
    """An engine that takes `payload` bytes."""
    bounds = Bounds(memory_bytes_max=payload)
    return Engine(MemoryStorage(), VirtualClock(), Limits(**limits), bounds)


@pytest.mark.parametrize("seed", range(10))
def test_the_count_is_what_the_logs_hold(seed: int) -> None:
    engine = Engine(MemoryStorage(), VirtualClock())
    random_ = random.Random(seed)
    for number in range(300):
        name = f"s{random_.randrange(8)}"
        match random_.randrange(5):
            case 0:
                create(engine, name, Create(body=b"x" * random_.randrange(50)))
            case 1:
                source = f"s{random_.randrange(8)}"
                create(engine, f"f{number}", Create(fork=ForkRequest(source, None, 0)))
            case 2:
                delete(engine, random_.choice(list(engine.streams)))
            case _ if name in engine.streams and not engine.streams[name].state.deleted:
                append(engine, name, Append(b"y" * random_.randrange(1, 50)))
        assert engine.stored.total == held_bytes(engine)
    for name in list(engine.streams):
        delete(engine, name)
    assert list(engine.streams) == [REGISTRY_NAME]
    assert engine.stored.total == 0


def test_memory_can_be_filled_to_the_last_byte_and_not_beyond() -> None:
    engine = with_room_for(100)
    create(engine, "a")
    assert isinstance(append(engine, "a", Append(b"x" * 100)), Appended)
    assert isinstance(append(engine, "a", Append(b"x")), MemoryFull)


def test_an_append_over_the_limit_changes_nothing() -> None:
    engine = with_room_for(100)
    create(engine, "a")
    stream = engine.find("a")
    append(engine, "a", Append(b"x" * 60))
    before = (engine.stored.total, stream.state.tail, stream.visible)
    producer = ProducerHeaders(b"p", 0, 0)
    refused = Append(b"y" * 41, close=True, stream_seq=b"9", producer=producer)
    assert isinstance(append(engine, "a", refused), MemoryFull)
    assert (engine.stored.total, stream.state.tail, stream.visible) == before
    assert not stream.state.closed
    smaller = Append(b"y" * 40, stream_seq=b"1", producer=producer)
    assert isinstance(append(engine, "a", smaller), Appended)


def test_a_create_over_the_limit_leaves_no_stream() -> None:
    engine = with_room_for(100)
    before = engine.stored.total
    assert isinstance(create(engine, "a", Create(body=b"x" * 101)), MemoryFull)
    assert list(engine.streams) == [REGISTRY_NAME]
    assert engine.stored.total == before


def test_a_json_append_counts_as_it_is_held() -> None:
    engine = Engine(MemoryStorage(), VirtualClock())
    create(engine, "a", Create(content_type=JSON))
    append(engine, "a", Append(b"[ 1 , 22 ]", JSON))
    assert engine.stored.total == len(b"1,22,")


def test_a_stream_can_be_filled_to_the_last_byte_and_not_beyond() -> None:
    engine = Engine(MemoryStorage(), VirtualClock(), Limits(stream_bytes_max=10))
    create(engine, "a", Create(body=b"x" * 4))
    assert isinstance(append(engine, "a", Append(b"x" * 7)), StreamFull)
    assert isinstance(append(engine, "a", Append(b"x" * 6)), Appended)
    assert isinstance(append(engine, "a", Append(b"x")), StreamFull)


def test_a_full_stream_can_still_be_closed() -> None:
    engine = Engine(MemoryStorage(), VirtualClock(), Limits(stream_bytes_max=10))
    create(engine, "a", Create(body=b"x" * 10))
    assert isinstance(append(engine, "a", Append(b"", close=True)), Appended)


def test_a_full_server_can_still_close_and_delete() -> None:
    engine = with_room_for(100)
    create(engine, "a", Create(body=b"x" * 100))
    append(engine, "a", Append(b"x" * 100))
    assert isinstance(append(engine, "a", Append(b"", close=True)), Appended)
    assert isinstance(delete(engine, "a"), Deleted)


def test_deleting_small_streams_makes_room() -> None:
    """What the registry says of a deleted stream must not cost more than the stream did."""
    engine = Engine(MemoryStorage(), VirtualClock(), bounds=Bounds(memory_bytes_max=500))
    names = [f"s{number}" for number in range(1000)]
    created = [n for n in names if is_created(create(engine, n, Create(body=b"x")))]
    assert len(created) == 500
    for name in created:
        delete(engine, name)
    assert is_created(create(engine, "again", Create(body=b"x")))


def test_one_stream_too_many_is_refused_until_another_goes() -> None:
    engine = Engine(MemoryStorage(), VirtualClock(), bounds=Bounds(streams_max=2))
    assert is_created(create(engine, "a"))
    assert is_created(create(engine, "b"))
    assert isinstance(create(engine, "c"), Overloaded)
    delete(engine, "a")
    assert is_created(create(engine, "c"))
