"""One tenant is hostile; three others append, tail and read through the same Envoy.

Their answers are their own and complete, and take no longer than a stated multiple of what they
take without it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.attacks import ROOT
from tests.hostile.holding_server import HoldingServer
from tests.hostile.honest_tenant import Tenant
from tests.hostile.hostile_tenant import ATTACKS
from tests.hostile.mixed import HONEST, Arenas, Report, arena, lateness, run_tenants, violations
from tests.hostile.mixing_server import MixingServer
from tests.hostile.raising_server import RaisingServer
from tests.http.helpers import client_of

pytestmark = pytest.mark.slow

ATTACK_ROUNDS = 75  # of each tenant, 25 a second: 675 requests, so that a p99 is the seventh worst
QUIET_ROUNDS = 100
OTHER_ROUNDS = 25  # where answers count, and not how long they take


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
    if lateness(quiet, report) and not report.faults and ground.is_calm():
        report = ground.under([attack], ATTACK_ROUNDS)
    print(f"{attack}: {report}; quiet: {quiet}")
    wrong = violations(quiet, report)
    assert not wrong, "\n".join([str(report), *wrong])
    assert report.waves, "it did attack"
    assert ground.is_calm(), "".join(ground.server.log)


def test_a_defect_that_shows_after_a_commit_costs_nobody_else_an_answer(tmp_path: Path) -> None:
    """Envoy shares its connections to the server among all: a late answer would be another's."""
    with arena(tmp_path / "raising", RaisingServer, sound=False) as ground:
        report = ground.under(["appends"], OTHER_ROUNDS)
        assert any("a defect, after the commit" in line for line in ground.server.log)
    assert not report.faults, "\n".join(report.faults)


def test_an_answer_that_was_meant_for_another_is_noticed(tmp_path: Path) -> None:
    """The tenants themselves are put to the test, by a server that mixes up answers."""
    with MixingServer(str(tmp_path)) as server:
        tenants = [Tenant(server.port, "none", name, "mixed") for name in HONEST]
        report = run_tenants(tenants, OTHER_ROUNDS)
    assert any(": append " in fault for fault in report.faults), report


def test_a_loop_that_is_held_again_and_again_is_late(tmp_path: Path) -> None:
    """The bound is put to the test: for 0.4 s at a time the server computes and serves nobody."""
    with HoldingServer(str(tmp_path)) as server:

        def tenants() -> list[Tenant]:
            return [Tenant(server.port, "none", name, secrets.token_hex(4)) for name in HONEST]

        quiet = run_tenants(tenants(), OTHER_ROUNDS)
        over = threading.Event()

        def hold() -> None:
            with client_of(server) as client:
                while not over.wait(0.05):
                    client.get(f"{ROOT}/__ds/streams", params={"name": "hold/compute"})

        holder = threading.Thread(target=hold)
        holder.start()
        report = run_tenants(tenants(), OTHER_ROUNDS)
        over.set()
        holder.join()
    assert len(lateness(quiet, report)) == 2, f"requests and the tail: {report}; {quiet}"
