"""Kills and power cuts with fork chains down to the limit, clocks that are set, and full disks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.testing.power_cut import CannotCutPower, PowerCutDisk
from headrace.testing.server_process import ServerProcess
from tests.durability.campaign import mutant
from tests.durability.forkers import Chains
from tests.durability.modes import DURABLE_MODES, settings
from tests.durability.test_live import kill
from tests.durability.troubled_campaign import TroubledCampaign

pytestmark = pytest.mark.slow

LIVES = 8
DEPTH_MAX = 12  # so that few lives reach it; the soak goes down to the default of 64
MUTANT_LIVES_MAX = 10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerCutDisk]:
    prepared = PowerCutDisk(tmp_path)
    try:
        prepared.__enter__()
    except CannotCutPower as reason:
        pytest.skip(f"no power cuts here: {reason}")
    yield prepared
    prepared.__exit__(None, None, None)


def cut_power(disk: PowerCutDisk, server: ServerProcess) -> None:
    disk.cut()
    server.kill()


def troubled(mode: str, disk: PowerCutDisk, directory: Path, **env: str) -> TroubledCampaign:
    depth = {"DS_LIMITS__MAX_FORK_DEPTH": str(DEPTH_MAX)}
    return TroubledCampaign(
        settings(mode, disk.path / "data") | depth | env, directory, disk=disk.path
    )


@pytest.mark.parametrize("end", ["kill", "power cut"])
@pytest.mark.parametrize("mode", DURABLE_MODES)
def test_nothing_is_lost_under_fork_chains_clock_steps_and_full_disks(
    mode: str, end: str, disk: PowerCutDisk, tmp_path: Path
) -> None:
    campaign = troubled(mode, disk, tmp_path)
    for _ in range(LIVES):
        if end == "kill":
            campaign.live_and_die(kill)
        else:
            campaign.live_and_die(partial(cut_power, disk))
            disk.restore()
    assert campaign.violations(campaign.examine()) == []
    print(f"{mode}, {end}: {campaign.trouble}")
    assert campaign.deepest == DEPTH_MAX
    assert campaign.clock_steps


def test_a_server_that_does_not_sync_is_caught_by_its_forks(
    disk: PowerCutDisk, tmp_path: Path
) -> None:
    campaign = troubled("file-durable", disk, tmp_path, **mutant("no_sync"))
    for _ in range(MUTANT_LIVES_MAX):
        campaign.live_and_die(partial(cut_power, disk))
        disk.restore()
        try:
            found = campaign.chain_violations()
        except RuntimeError:  # there is not even enough left to start from
            return
        if found:
            return
    pytest.fail("no fork that was acknowledged is missing")


def test_a_fork_with_other_bytes_is_a_violation() -> None:
    chains = Chains(holds={"a": "one\n", "b": "one\ntwo\n"}, perhaps={"b": "three\n"}, gone={"c"})
    found = {"a": "one\n", "b": "one\ntwo\nthree\n", "c": None}
    assert chains.violations(found) == []
    for path, text in (("a", ""), ("a", None), ("b", "one\n"), ("b", "two\n"), ("c", "")):
        assert len(chains.violations({**found, path: text})) == 1
