"""Where an event of text may be cut, and what it costs to find out."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

import pytest

from headrace.engine.reads import Chunk
from headrace.http.connections.send_windows import UnsentBudget
from headrace.http.exchange import Exchange
from headrace.http.handlers.live import BOUNDARIES_MAX, EventReader, LiveReads
from headrace.protocol.offsets import START, Position
from tests.engine.helpers import new_engine, put


def cut(data: bytes, lengths: list[int]) -> Chunk | None:
    async def main() -> Chunk | None:
        engine = new_engine()
        put(engine, "s")
        loop = asyncio.get_running_loop()
        live = LiveReads(engine, loop, UnsentBudget(loop), 1, 0)
        reader = EventReader(live, engine.find("s"), START, None, cast(Exchange, None))
        end = Position(len(lengths), len(data))
        return reader._whole_characters(Chunk(START, end, data, True, False, lengths))

    return asyncio.run(main())


@pytest.mark.parametrize("character", ["é", "€", "😀"])
def test_the_last_message_that_ends_with_a_whole_character_ends_the_event(character: str) -> None:
    raw = character.encode()
    for count in range(1, len(raw)):
        data = b"ab" + raw + raw[:count]
        found = cut(data, [1, 1, len(raw)] + [1] * count)
        assert found is not None
        assert (found.data, found.end) == (b"ab" + raw, Position(3, 2 + len(raw)))


def test_a_stream_of_halves_is_not_looked_through_again_and_again() -> None:
    """Cutting the text at each message copied it each time: minutes for a megabyte."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    data = b"\xe2" * 500_000
    sys.setprofile(count)
    try:
        assert cut(data, [1] * len(data)) is None
    finally:
        sys.setprofile(None)
    assert calls < 3 * BOUNDARIES_MAX
