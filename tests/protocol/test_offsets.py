"""Offsets as tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidOffset
from headrace.protocol.offsets import BEGINNING, NOW, Position, parse_token

HALF = st.integers(0, 10**16 - 1)
POSITIONS = st.builds(Position, HALF, HALF)


@given(POSITIONS)
def test_a_token_is_read_back_as_its_position(position: Position) -> None:
    assert parse_token(position.token()) == position


@given(POSITIONS, POSITIONS)
def test_tokens_sort_as_text_in_stream_order(one: Position, other: Position) -> None:
    assert (one < other) == (one.token() < other.token())


@pytest.mark.parametrize(
    "text",
    ["", BEGINNING, NOW, "0", "0_0", "0000000000000000-0000000000000000",
     "0000000000000000_000000000000000", "0000000000000000_00000000000000000",
     "000000000000000a_0000000000000000", "٠000000000000000_0000000000000000",
     "0000000000000000_0000000000000000\n", " 0000000000000000_0000000000000000",
     "+000000000000000_0000000000000000", "0000000000000000_0000000000000000_0"],
)  # fmt: skip
def test_anything_else_is_no_token(text: str) -> None:
    with pytest.raises(InvalidOffset):
        parse_token(text)
