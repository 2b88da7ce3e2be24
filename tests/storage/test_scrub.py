"""The scrub finds rot that no client has met yet, at its own pace, and stops nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.storage.base import Check, CheckResult
from headrace.storage.memory import MemoryStorage
from headrace.storage.scrub import PASS_SECS_MIN, Scrub
from headrace.testing.server_process import ServerProcess
from headrace.testing.virtual_clock import VirtualClock
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.durability.modes import settings

MARK = b"a mark that stands nowhere else"
TEXT = {"content-type": "text/plain"}


class Pile(MemoryStorage):
    """A storage with so many checks of a thousand bytes each."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.done = 0

    def checks(self) -> Iterator[Check]:
        for _ in range(self.count):
            yield self.check

    def check(self) -> CheckResult:
        self.done += 1
        return CheckResult(1000, [])


def no_snapshots() -> Iterator[Check]:
    return iter(())


def test_it_reads_no_faster_than_it_may() -> None:
    pile = Pile(100)
    scrub = Scrub(pile, no_snapshots, 3000, VirtualClock())
    scrub.tick()
    assert pile.done == 3
    scrub.tick()
    assert pile.done == 6


def test_a_check_that_reads_too_much_is_waited_for() -> None:
    pile = Pile(100)
    scrub = Scrub(pile, no_snapshots, 400, VirtualClock())
    scrub.tick()
    scrub.tick()
    assert pile.done == 1
    for _ in range(98):
        scrub.tick()
    assert pile.done == 40


def test_a_pass_that_is_over_soon_is_not_begun_again_soon() -> None:
    pile, clock = Pile(2), VirtualClock()
    scrub = Scrub(pile, no_snapshots, 1_000_000, clock)
    for _ in range(5):
        scrub.tick()
    assert pile.done == 2
    clock.advance(secs=PASS_SECS_MIN)
    scrub.tick()
    assert pile.done == 4
    assert scrub.scrubbed_bytes == 4000


def test_nothing_is_read_where_it_is_switched_off() -> None:
    pile = Pile(2)
    scrub = Scrub(pile, no_snapshots, 0, VirtualClock())
    scrub.tick()
    assert pile.done == 0


def test_nothing_is_read_once_it_is_stopped() -> None:
    pile = Pile(2)
    scrub = Scrub(pile, no_snapshots, 1000, VirtualClock())
    scrub.stop()
    scrub.tick()
    assert pile.done == 0


def metric(client: httpx.Client, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["file-durable", "acid"])
def test_a_flipped_bit_is_found_and_the_rest_is_served(mode: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    env = settings(mode, data)
    with (
        ServerProcess(env, cwd=str(tmp_path)) as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client,
    ):
        # Colder than what is kept in memory, so that a read meets the disk.
        client.put("/v1/stream/rotten", content=MARK, headers=TEXT)
        for _ in range(4):
            client.post("/v1/stream/rotten", content=bytes(60_000), headers=TEXT)
        client.put("/v1/stream/sound", content="sound", headers=TEXT)
        eventually(lambda: metric(client, "headrace_damage_found_total") == 0, "no damage yet")
    flipped = bytes([MARK[0] ^ 1]) + MARK[1:]
    for path in data.rglob("*"):
        if path.is_file() and path.parent.name != "journal" and MARK in path.read_bytes():
            path.write_bytes(path.read_bytes().replace(MARK, flipped))
    with (
        ServerProcess(env, cwd=str(tmp_path)) as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client,
    ):
        eventually(lambda: metric(client, "headrace_damage_found_total") == 1, "the damage")
        assert metric(client, "headrace_scrubbed_bytes_total") > 0
        assert client.get("/v1/stream/sound").text == "sound"
        assert client.get("/v1/stream/rotten").status_code == 500
        assert client.post("/v1/stream/sound", content="!", headers=TEXT).status_code == 204
        assert client.get("/readyz").status_code == 200
    (found,) = [line for line in server.log if "the scrub found damage" in line]
    assert "stream=rotten" in found or mode == "acid"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["file-durable", "acid"])
@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_rot_in_a_snapshot_is_found_once_though_a_fork_has_it_too(
    mode: str, damage: str, tmp_path: Path
) -> None:
    env = settings(mode, tmp_path / "data")
    with (
        ServerProcess(env, cwd=str(tmp_path)) as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client,
    ):
        client.put("/bucket")
        created = client.put("/bucket/rotten", content="x", headers=TEXT)
        offset = created.headers["Stream-Next-Offset"]
        client.put(f"/bucket/rotten/snapshot/{offset}", content=bytes(2_000_000))
        client.put("/bucket/fork", headers=TEXT | {"Stream-Forked-From": "/bucket/rotten"})
        client.put("/bucket/sound", content="x", headers=TEXT)
        client.put(f"/bucket/sound/snapshot/{offset}", content=b"sound")
    (blob,) = [path for path in tmp_path.glob("data/snapshots/*/*") if path.stat().st_size > 1000]
    if damage == "flipped":
        flipped = bytearray(blob.read_bytes())
        flipped[1_500_000] ^= 1
        blob.write_bytes(flipped)
    else:
        blob.unlink()
    with (
        ServerProcess(env, cwd=str(tmp_path)) as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client,
    ):
        eventually(lambda: metric(client, "headrace_damage_found_total") == 1, "the damage")
        assert client.get(f"/bucket/sound/snapshot/{offset}").content == b"sound"
        assert client.get("/readyz").status_code == 200
    found = [line for line in server.log if "the scrub found damage" in line]
    assert len(found) == 1
    assert blob.name in found[0]
    assert "stream=/bucket/rotten" in found[0]
