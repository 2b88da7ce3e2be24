"""The feed of a bucket at scale: its cost is that of what changes."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from headrace.engine import feed as feeds
from headrace.engine.engine import Engine
from headrace.engine.reads import Chunk
from headrace.errors import OffsetTrimmed
from headrace.protocol.offsets import Position
from headrace.protocol.requests import Append
from tests.engine.helpers import TEXT, new_engine, put


def engine_with(count: int) -> Engine:
    engine = new_engine()
    engine.buckets.create("agents", lambda _: None)
    for number in range(count):
        put(engine, f"/agents/{number}")
    engine.feeds.flush()
    return engine


def append(engine: Engine, name: str) -> None:
    engine.append(engine.find(name), Append(b"x", TEXT), lambda _: None)


def changes_since(engine: Engine, start: Position) -> list[dict[str, Any]]:
    found: list[Chunk] = []
    bucket = engine.buckets.find("agents")
    bucket.feed.flush()
    engine.read(bucket.stream, start, lambda chunk: found.append(chunk))  # type: ignore[arg-type]
    return list(json.loads(b"[%b]" % found[0].data[:-1]))


def calls_to_follow(engine: Engine) -> tuple[int, int]:
    """Function calls that ten active streams cost, and how many changes a follower hears of."""
    start = engine.buckets.find("agents").stream.visible
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for number in range(10):
            append(engine, f"/agents/{number}")
        engine.housekeeping.run()
        heard = changes_since(engine, start)
    finally:
        sys.setprofile(None)
    return calls, len(heard)


def test_ten_active_streams_cost_the_same_among_a_hundred_thousand() -> None:
    few, heard_of_few = calls_to_follow(engine_with(20))
    many, heard_of_many = calls_to_follow(engine_with(100_000))
    assert heard_of_few == heard_of_many == 10
    assert many <= few * 1.1


def test_a_stream_that_changes_all_the_time_is_one_line_per_moment() -> None:
    engine = engine_with(3)
    start = engine.buckets.find("agents").stream.visible
    for _ in range(50):
        append(engine, "/agents/1")
    append(engine, "/agents/2")
    found = changes_since(engine, start)
    assert [change["stream_id"] for change in found] == ["1", "2"]
    assert found[0]["next_offset"] == engine.find("/agents/1").visible.token()


def test_what_is_kept_has_a_bound_and_a_reader_behind_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeds, "KEPT_MESSAGES", 100)
    engine = engine_with(3)
    stream = engine.buckets.find("agents").stream
    start = stream.visible
    for _ in range(1000):
        append(engine, "/agents/1")
        engine.feeds.flush()
    assert 100 <= stream.visible.messages - stream.state.trim_offset.messages <= 300
    with pytest.raises(OffsetTrimmed):
        engine.start_position(stream, start)


def test_nobody_is_prompted_where_nobody_waits() -> None:
    engine = engine_with(3)
    prompted: list[None] = []
    engine.feeds.prompt = lambda: prompted.append(None)
    append(engine, "/agents/1")
    assert prompted == []
