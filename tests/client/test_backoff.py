"""Waits between attempts double up to a bound, and are drawn from a range around that."""

from __future__ import annotations

import ast
import re
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.backoff import NO_JITTER, Backoff
from tests.tree.markdown import ROOT

STEADY = Backoff(0.1, 2.0, jitter=NO_JITTER)


def test_waits_double_up_to_the_longest() -> None:
    waits = [STEADY.after(failures) for failures in range(1, 8)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_a_wait_is_drawn_from_the_range_around_what_it_grew_to(
    failures: int, chance: float
) -> None:
    grown = STEADY.after(failures)
    wait = Backoff(0.1, 2.0, jitter=(0.8, 1.2)).after(failures, chance)
    assert 0.8 * grown <= wait <= 1.2 * grown + 1e-9


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_no_wait_is_longer_than_the_bound(failures: int, chance: float) -> None:
    backoff = Backoff(1.0, 60.0, jitter=(0.8, 1.2))
    assert backoff.after(failures, chance) <= backoff.bound


def test_the_waits_of_a_loop_do_not_repeat_themselves() -> None:
    waits = list(islice(Backoff(1.0, 1.0).waits(), 20))
    assert len(set(waits)) > 1
    assert all(0.5 <= wait <= 1.0 for wait in waits)


def test_nothing_else_grows_its_waits_by_hand() -> None:
    """`pause = min(2 * pause, longest)` and powers of two of a count of failures."""
    by_hand = re.compile(r"min\(2 \* |2 ?\*\* ?(?:max|min|\w*fail|\w*attempt)|<< min\(")
    found = [
        f"{source.name}: {line.strip()}"
        for source in (ROOT / "src").rglob("*.py")
        if source.name != "backoff.py"
        for line in _code_lines(source.read_text("utf-8"))
        if by_hand.search(line)
    ]
    assert found == []


def _code_lines(text: str) -> list[str]:
    return ast.unparse(ast.parse(text)).splitlines()
