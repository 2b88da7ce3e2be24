"""Every answer belongs to its request, and every request gets one, whatever fails inside."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.durability.modes import DURABLE_MODES
from tests.hostile.answers import ROUNDS, Findings, serve_and_run

pytestmark = pytest.mark.slow

SEED = 7  # the soak draws others


def found_by_clients(mode: str, directory: Path, rounds: int, mutant: str = "") -> Findings:
    found = serve_and_run(mode, directory, SEED, rounds, mutant)
    print(found)
    return found


@pytest.mark.parametrize("mode", ["memory", *DURABLE_MODES])
def test_every_answer_is_that_of_its_request(mode: str, tmp_path: Path) -> None:
    found = found_by_clients(mode, tmp_path, ROUNDS)
    assert not found.violations(), "\n".join(found.violations()[:10])
    assert found.failures, f"no fault was met, so nothing is tested: {found}"
    assert found.closes, f"no connection was closed by a fault: {found}"


@pytest.mark.parametrize("mode", DURABLE_MODES)
def test_an_exchange_that_answers_twice_is_caught(mode: str, tmp_path: Path) -> None:
    """By the clients, which get the answer of a request that came before."""
    found = found_by_clients(mode, tmp_path, ROUNDS // 3, "undead")
    assert any("client " in problem for problem in found.problems), str(found)
