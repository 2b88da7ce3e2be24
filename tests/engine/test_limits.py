"""Over a limit the engine refuses, and nothing has changed."""

from __future__ import annotations

import pytest

from headrace.engine.engine import Bounds, Deleted, Engine
from headrace.errors import HeadraceError, MemoryFull, Overloaded, StreamFull, TooManyProducers
from headrace.limits import Limits
from headrace.protocol.requests import Create, ForkRequest
from headrace.protocol.stream import Appended
from tests.engine.helpers import (
    TEXT,
    Recorder,
    announced,
    content,
    delete,
    fork,
    is_created,
    new_engine,
    post,
    put,
    registry_messages,
)


def snapshot(engine: Engine) -> object:
    """Everything a client could tell apart."""
    streams = {
        name: (stream.visible, stream.visible_closed, stream.fork_count)
        for name, stream in engine.streams.items()
    }
    return streams, engine.stored.total, registry_messages(engine)


def refused(engine: Engine, outcome: object, kind: type[HeadraceError], before: object) -> None:
    assert type(outcome) is kind
    assert snapshot(engine) == before


@pytest.fixture
def small() -> Engine:
    """An engine with room for 999 bytes."""
    engine = new_engine(bounds=Bounds(memory_bytes_max=999))
    put(engine, "a")
    return engine


def test_an_append_past_all_memory_changes_nothing(small: Engine) -> None:
    before = snapshot(small)
    refused(small, post(small, "a", b"x" * 1000), MemoryFull, before)
    assert isinstance(post(small, "a", b"x"), Appended)


def test_a_create_past_all_memory_changes_nothing(small: Engine) -> None:
    before = snapshot(small)
    outcome = put(small, "b", Create(b"x" * 1000, TEXT))
    refused(small, outcome, MemoryFull, before)


def test_a_fork_past_all_memory_does_not_bind_its_source(small: Engine) -> None:
    before = snapshot(small)
    command = Create(b"x" * 1000, TEXT, fork=ForkRequest("a", None, 0))
    refused(small, put(small, "b", command), MemoryFull, before)
    delete(small, "a")
    assert is_created(put(small, "a"))


def test_a_delete_makes_room(small: Engine) -> None:
    put(small, "b")
    assert isinstance(post(small, "b", b"x" * 500), Appended)
    assert isinstance(post(small, "a", b"x" * 500), MemoryFull)
    assert isinstance(delete(small, "b"), Deleted)
    assert isinstance(post(small, "a", b"x" * 400), Appended)


def test_a_fork_holds_no_copy_of_what_it_inherits() -> None:
    engine = new_engine()
    put(engine, "a", Create(b"x" * 5000, TEXT))
    before = engine.stored.total
    fork(engine, "b", "a")
    assert content(engine, "b") == b"x" * 5000
    assert engine.stored.total == before


def test_an_append_past_one_streams_bytes_changes_nothing() -> None:
    engine = new_engine(limits=Limits(stream_bytes_max=10))
    put(engine, "a", Create(b"x" * 9, TEXT))
    before = snapshot(engine)
    refused(engine, post(engine, "a", b"xx", producer=b"p"), StreamFull, before)
    assert isinstance(post(engine, "a", b"x", producer=b"p"), Appended), "p's sequence 0 is new"


def test_a_batch_past_one_streams_bytes_leaves_no_message() -> None:
    engine = new_engine(limits=Limits(stream_bytes_max=10))
    put(engine, "a", Create(content_type="application/json"))
    before = snapshot(engine)
    outcome = post(engine, "a", b"[1,22,333,4444]", content_type="application/json")
    refused(engine, outcome, StreamFull, before)


def test_a_create_past_one_streams_bytes_creates_nothing() -> None:
    engine = new_engine(limits=Limits(stream_bytes_max=10))
    before = snapshot(engine)
    refused(engine, put(engine, "a", Create(b"x" * 11, TEXT)), StreamFull, before)


def test_inherited_bytes_count_for_a_fork() -> None:
    engine = new_engine(limits=Limits(stream_bytes_max=10))
    put(engine, "a", Create(b"x" * 9, TEXT))
    fork(engine, "b", "a")
    before = snapshot(engine)
    refused(engine, post(engine, "b", b"xx"), StreamFull, before)


def test_one_stream_more_than_there_may_be_is_refused() -> None:
    engine = new_engine(bounds=Bounds(streams_max=2))
    put(engine, "a")
    put(engine, "b")
    before = snapshot(engine)
    refused(engine, put(engine, "c"), Overloaded, before)
    delete(engine, "a")
    assert is_created(put(engine, "c"))


def test_a_full_server_still_confirms_streams_that_exist() -> None:
    engine = new_engine(bounds=Bounds(streams_max=1))
    put(engine, "a")
    assert not isinstance(put(engine, "a"), HeadraceError)


def test_one_reader_more_than_a_stream_may_have_is_refused() -> None:
    engine = new_engine(bounds=Bounds(readers_per_stream_max=2))
    put(engine, "a")
    put(engine, "b")
    first = Recorder(engine, "a")
    Recorder(engine, "a")
    with pytest.raises(Overloaded):
        Recorder(engine, "a")
    Recorder(engine, "b")
    assert engine.reader_count == 3
    first.leave()
    Recorder(engine, "a")


def test_one_producer_more_than_a_stream_knows_is_refused() -> None:
    engine = new_engine(limits=Limits(producers_max=1))
    put(engine, "a")
    post(engine, "a", b"x", producer=b"p")
    before = snapshot(engine)
    refused(engine, post(engine, "a", b"x", producer=b"q"), TooManyProducers, before)


def test_the_registry_is_announced_to_even_when_memory_is_full(small: Engine) -> None:
    assert isinstance(post(small, "a", b"x" * 999), Appended)
    delete(small, "a")
    assert announced(registry_messages(small))[-1] == ("delete", "a")
