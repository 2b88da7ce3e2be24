"""One tenant is hostile; three others append, tail and read through the same Envoy.

Their answers are their own and complete, and take no longer than a stated multiple of what they
take without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.honest_tenant import Tenant
from tests.hostile.hostile_tenant import ATTACKS
from tests.hostile.mixed import HONEST, Arenas, Report, arena, is_late, run_tenants, violations
from tests.hostile.mixing_server import MixingServer
from tests.hostile.raising_server import RaisingServer

pytestmark = pytest.mark.slow

ATTACK_ROUNDS = 25  # of each tenant, 25 a second: three requests each
QUIET_ROUNDS = 50


@pytest.fixture(scope="module")
def arenas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arenas]:
    with Arenas(tmp_path_factory.mktemp("tenants")) as found:
        yield found


@pytest.fixture(scope="module")
def quiet(arenas: Arenas) -> Report:
    report = arenas.calm().quiet(QUIET_ROUNDS)
    assert not report.faults, report.faults
    return report


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_tenant_neither_touches_nor_delays_the_others(
    arenas: Arenas, quiet: Report, attack: str
) -> None:
    ground = arenas.calm()
    report = ground.under([attack], ATTACK_ROUNDS)
    if is_late(quiet, report) and not report.faults and ground.is_calm():
        report = ground.under([attack], ATTACK_ROUNDS)
    print(f"{attack}: {report}; quiet: {quiet}")
    wrong = violations(quiet, report)
    assert not wrong, "\n".join([str(report), *wrong])
    assert report.waves, "it did attack"
    assert ground.is_calm(), "".join(ground.server.log)


def test_a_defect_that_shows_after_a_commit_costs_nobody_else_an_answer(tmp_path: Path) -> None:
    """Envoy shares its connections to the server among all: a late answer would be another's."""
    with arena(tmp_path / "raising", RaisingServer, sound=False) as ground:
        report = ground.under(["appends"], ATTACK_ROUNDS)
        assert any("a defect, after the commit" in line for line in ground.server.log)
    assert not report.faults, "\n".join(report.faults)


def test_an_answer_that_was_meant_for_another_is_noticed(tmp_path: Path) -> None:
    """The tenants themselves are put to the test, by a server that mixes up answers."""
    with MixingServer(str(tmp_path)) as server:
        tenants = [Tenant(server.port, "none", name, "mixed") for name in HONEST]
        report = run_tenants(tenants, ATTACK_ROUNDS)
    assert any(": append " in fault for fault in report.faults), report
