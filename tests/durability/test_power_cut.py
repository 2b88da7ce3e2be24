"""A power cut loses nothing that was acknowledged.

kill -9 cannot show this: the page cache outlives a process. Here the file system goes down without
a flush, on a loop-mounted image, and is mounted again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing.power_cut import CannotCutPower, PowerCutDisk
from headrace.testing.server_process import ServerProcess
from tests.durability.campaign import Campaign, mutant
from tests.durability.modes import DURABLE_MODES, settings

pytestmark = pytest.mark.slow

CYCLES = 20
EXAMINED_EVERY = 5


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerCutDisk]:
    prepared = PowerCutDisk(tmp_path)
    try:
        prepared.__enter__()
    except CannotCutPower as reason:
        pytest.skip(f"no power cuts here: {reason}")
    yield prepared
    prepared.__exit__(None, None, None)


def cut_power(campaign: Campaign, disk: PowerCutDisk) -> None:
    def end(server: ServerProcess) -> None:
        disk.cut()
        server.kill()

    campaign.live_and_die(end)
    disk.restore()


@pytest.mark.parametrize("mode", DURABLE_MODES)
def test_what_was_acknowledged_survives_power_cuts(
    mode: str, disk: PowerCutDisk, tmp_path: Path
) -> None:
    campaign = Campaign(settings(mode, disk.path / "data"), tmp_path)
    for number in range(1, CYCLES + 1):
        cut_power(campaign, disk)
        if number % EXAMINED_EVERY == 0:
            assert campaign.violations(campaign.examine()) == []
    print(
        f"{mode}: {campaign.lives} power cuts, {campaign.acknowledged} appends and "
        f"{campaign.lifecycles.confirmed} creates, closes and deletes acknowledged, 0 lost"
    )
    assert campaign.acknowledged > CYCLES


@pytest.mark.parametrize("mode", DURABLE_MODES)
def test_a_server_that_does_not_sync_is_caught_by_the_first_cut(
    mode: str, disk: PowerCutDisk, tmp_path: Path
) -> None:
    campaign = Campaign(settings(mode, disk.path / "data") | mutant("no_sync"), tmp_path)
    cut_power(campaign, disk)
    try:
        evidence = campaign.examine()
    except RuntimeError:  # there is not even enough left to start from
        return
    assert campaign.violations(evidence)
