"""The point where a fork leaves its source."""

from __future__ import annotations

import pytest

from headrace.errors import InvalidOffset, InvalidRequest, OffsetTrimmed, Refused
from headrace.protocol.forks import fork_anchor, messages_needed, resolve_point
from headrace.protocol.offsets import START, Position
from headrace.protocol.requests import ForkRequest
from headrace.protocol.stream import StreamState
from tests.protocol.states import new_state

# Three messages of 4, 1 and 5 bytes.
ENDS = (START, Position(1, 4), Position(2, 5), Position(3, 10))
TAIL = ENDS[-1]


def source(content_type: str = "text/plain", trim_offset: Position = START) -> StreamState:
    state = new_state(content_type)
    state.tail, state.trim_offset = TAIL, trim_offset
    return state


def point(state: StreamState, offset: Position | None, sub_offset: int = 0) -> object:
    request = ForkRequest("a/b", offset, sub_offset)
    anchor = fork_anchor(state, request)
    if isinstance(anchor, Refused):
        return anchor
    reached = None
    if anchor in ENDS:
        reached = ENDS[ENDS.index(anchor) :][: messages_needed(state, request) + 1][-1]
    return resolve_point(state, anchor, sub_offset, reached)


@pytest.mark.parametrize("offset", ENDS)
def test_a_fork_leaves_at_any_boundary(offset: Position) -> None:
    assert point(source(), offset) == offset


def test_a_fork_leaves_at_the_tail_unless_told_otherwise() -> None:
    assert point(source(), None) == TAIL


@pytest.mark.parametrize(
    ("offset", "sub_offset", "expected"),
    [(START, 1, Position(1, 1)), (START, 4, Position(1, 4)), (ENDS[1], 1, ENDS[2]),
     (ENDS[2], 3, Position(3, 8))],
)  # fmt: skip
def test_a_sub_offset_counts_bytes_of_the_next_message(
    offset: Position, sub_offset: int, expected: Position
) -> None:
    assert point(source(), offset, sub_offset) == expected


@pytest.mark.parametrize(
    ("offset", "sub_offset", "expected"),
    [(START, 1, ENDS[1]), (START, 3, TAIL), (ENDS[1], 2, TAIL)],
)
def test_a_sub_offset_counts_messages_in_json_mode(
    offset: Position, sub_offset: int, expected: Position
) -> None:
    assert point(source("application/json"), offset, sub_offset) == expected


@pytest.mark.parametrize(
    ("content_type", "offset", "sub_offset"),
    [("text/plain", START, 5), ("text/plain", None, 1), ("text/plain", ENDS[1], 2),
     ("application/json", START, 4), ("application/json", None, 1)],
)  # fmt: skip
def test_a_sub_offset_that_overshoots_is_refused(
    content_type: str, offset: Position | None, sub_offset: int
) -> None:
    refusal = point(source(content_type), offset, sub_offset)
    assert isinstance(refusal, InvalidRequest)
    assert "overshoots" in refusal.detail


@pytest.mark.parametrize(
    "offset",
    [Position(4, 10), Position(3, 11), Position(1, 3), Position(0, 4), Position(10**15, 10**15)],
)
def test_an_offset_the_source_never_returned_is_refused(offset: Position) -> None:
    assert isinstance(point(source(), offset), InvalidOffset)


def test_an_offset_below_the_trim_offset_is_gone() -> None:
    refusal = point(source(trim_offset=ENDS[2]), ENDS[1])
    assert isinstance(refusal, OffsetTrimmed)
    assert refusal.earliest_offset == ENDS[2].token()
