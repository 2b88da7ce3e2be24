"""A read answers in whole messages, and says how long each is."""

from __future__ import annotations

from headrace.protocol.offsets import START, Position
from headrace.protocol.requests import Create, ForkRequest
from tests.engine.helpers import new_engine, post, put, read


def test_a_message_cut_by_a_fork_is_as_long_as_the_fork_has_it() -> None:
    engine = new_engine()
    put(engine, "a")
    for body in (b"one", b"three", b"more"):
        post(engine, "a", body)
    put(engine, "b", Create(b"own", fork=ForkRequest("a", Position(1, 3), 2)))
    fork = engine.find("b")
    chunk = read(engine, fork, START)
    assert (chunk.data, [*chunk.lengths]) == (b"onethown", [3, 2, 3])
    end_in_source = Position(2, 8)
    assert fork.log.read(end_in_source, fork.visible, 100) is None, "not a boundary here"
