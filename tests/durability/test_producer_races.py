"""Exactly once per producer, epoch and number, however many writers claim the same one."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import catch_up
from tests.durability.campaign import mutant
from tests.durability.modes import ALL_MODES, settings
from tests.durability.producer_races import Race, run_race

pytestmark = pytest.mark.slow

PATH = "/v1/stream/raced"
RACERS = 8
ATTEMPTS = 1200  # of each racer


def race_on(env: dict[str, str], directory: Path, attempts: int) -> tuple[Race, list[str]]:
    """A race, a restart where something is kept, and what is then stored."""
    race = Race()
    with ServerProcess(env, cwd=str(directory)) as server:
        httpx.put(server.url + PATH, headers={"content-type": "text/plain"})
        run_race(server.port, PATH, RACERS, attempts, race)
        with httpx.Client(base_url=server.url) as client:
            stored = b"".join(one.content for one in catch_up(client, PATH)).decode().splitlines()
    return race, stored


@pytest.mark.parametrize("mode", ALL_MODES)
def test_one_of_many_claims_is_accepted_and_the_rest_are_told(mode: str, tmp_path: Path) -> None:
    race, stored = race_on(settings(mode, tmp_path / "data"), tmp_path, ATTEMPTS)
    print(
        f"{mode}: {race.attempts} attempts, {len(race.accepted)} accepted, "
        f"{len(race.repeated)} repeats, {race.epoch} new epochs"
    )
    assert race.attempts == RACERS * ATTEMPTS
    assert race.epoch > 0
    assert race.repeated
    assert race.violations(stored) == []


def test_a_server_that_forgets_its_producers_is_caught(tmp_path: Path) -> None:
    env = settings("memory", tmp_path / "data") | mutant("forget_producers")
    race, stored = race_on(env, tmp_path, 50)
    assert race.violations(stored)
