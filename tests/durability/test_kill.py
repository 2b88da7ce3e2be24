"""kill -9 under load loses nothing that was acknowledged, and invents nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing.delivery_checker import DeliveryChecker, Existence, LifecycleChecker
from headrace.testing.server_process import ServerProcess
from tests.durability.campaign import STREAMS, Campaign, Evidence, mutant
from tests.durability.modes import DURABLE_MODES, KEPT_MODES, settings

pytestmark = pytest.mark.slow

CYCLES = 50
MUTANT_CYCLES_MAX = 10


def cycles(mode: str) -> int:
    """file-fast is file-durable without the sync, which a kill does not tell apart."""
    return CYCLES if mode in DURABLE_MODES else CYCLES // 3


def kill(server: ServerProcess) -> None:
    server.kill()


@pytest.fixture(scope="module", params=KEPT_MODES)
def fought(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Campaign, Evidence]:
    """A server that was killed many times under many clients, and what it holds then."""
    directory = tmp_path_factory.mktemp("kill")
    campaign = Campaign(settings(request.param, directory / "data"), directory)
    for _ in range(cycles(request.param)):
        campaign.live_and_die(kill)
    evidence = campaign.examine()
    print(
        f"{request.param}: {campaign.lives} kills, {campaign.acknowledged} appends and "
        f"{campaign.lifecycles.confirmed} creates, closes and deletes acknowledged, "
        f"{campaign.repeats} producer repeats, "
        f"{len(campaign.violations(evidence))} violations"
    )
    return campaign, evidence


@pytest.mark.parametrize("path", STREAMS)
def test_every_acknowledged_append_is_there_once_and_in_order(
    fought: tuple[Campaign, Evidence], path: str
) -> None:
    campaign, evidence = fought
    assert len(campaign.checkers[path].acknowledged) > campaign.lives
    assert campaign.checkers[path].violations(evidence.lines[path]) == []


@pytest.mark.parametrize("path", STREAMS)
def test_producers_that_repeat_across_kills_leave_no_gap(
    fought: tuple[Campaign, Evidence], path: str
) -> None:
    campaign, evidence = fought
    numbers = [int(line.partition(":")[2]) for line in evidence.lines[path] if line[0] == "p"]
    assert len(numbers) > campaign.lives
    assert numbers == list(range(len(numbers)))


def test_creates_closes_and_deletes_are_as_acknowledged(
    fought: tuple[Campaign, Evidence],
) -> None:
    campaign, evidence = fought
    assert set(evidence.lifecycles.values()) == set(Existence)
    assert campaign.lifecycles.violations(evidence.lifecycles) == []


def test_the_registry_names_the_streams_that_exist(fought: tuple[Campaign, Evidence]) -> None:
    _, evidence = fought
    existing = {
        path for path, existence in evidence.lifecycles.items() if existence is not Existence.ABSENT
    }
    assert evidence.registered == existing | set(STREAMS)


@pytest.mark.parametrize("mode", DURABLE_MODES)
def test_a_server_that_acknowledges_early_is_caught(mode: str, tmp_path: Path) -> None:
    env = settings(mode, tmp_path / "data") | mutant("acknowledge_early")
    campaign = Campaign(env, tmp_path)
    for _ in range(MUTANT_CYCLES_MAX):
        campaign.live_and_die(kill)
        if campaign.violations(campaign.examine()):
            return
    pytest.fail(f"{MUTANT_CYCLES_MAX} kills found nothing wrong")


def test_the_oracle_names_what_should_not_be() -> None:
    checker = DeliveryChecker({"a:0", "a:1"}, {"a:2"}, {"a:3"})
    assert checker.violations(["a:0", "a:1", "a:3"]) == []
    assert checker.violations(["a:1"]) == ["acknowledged but lost: a:0"]
    assert "out of order: a:0" in checker.violations(["a:1", "a:0"])
    assert "refused but present: a:2" in checker.violations(["a:0", "a:1", "a:2"])
    assert "present 2 times: a:1" in checker.violations(["a:0", "a:1", "a:1"])
    assert "never sent: b:0" in checker.violations(["a:0", "a:1", "b:0"])


def test_several_states_are_allowed_until_one_is_confirmed() -> None:
    lifecycles = LifecycleChecker()
    lifecycles.attempt("s", Existence.OPEN)
    assert (
        lifecycles.violations({"s": Existence.ABSENT})
        == lifecycles.violations({"s": Existence.OPEN})
        == []
    )
    lifecycles.confirm("s", Existence.OPEN)
    assert lifecycles.violations({"s": Existence.ABSENT}) == ["s is absent, and should be open"]
