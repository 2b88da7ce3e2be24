"""Clocks that are set and disks that are full, read-only or failing: nothing is lost or mixed up.

Each test of a clock runs a real server whose wall clock is set while it runs or between two runs;
each test of a disk a real file system of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.virtual_clock import START_MS
from headrace.testing.waiting import eventually
from tests.durability.full_disk import fill
from tests.durability.modes import ALL_MODES, DURABLE_MODES, KEPT_MODES, settings
from tests.hostile.disks import mount, small_disk
from tests.hostile.set_clock import SetClockServer
from tests.subscriptions.api import Api

__all__ = ["small_disk"]

pytestmark = pytest.mark.slow

ROOT = "/v1/stream"
TEXT = {"content-type": "text/plain"}
HOUR = 3600
DAY = 24 * HOUR


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(mode: str, tmp_path: Path) -> Iterator[SetClockServer]:
    process = SetClockServer(settings(mode, tmp_path / "data"), tmp_path)
    process.start()
    yield process
    if process.is_running:
        assert process.stop() == 0, "".join(process.log)


def read(server: SetClockServer, path: str, **headers: str) -> httpx.Response:
    return httpx.get(server.url + path, params={"offset": "-1"}, headers=headers)


def verify(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.cli", "verify", str(directory)]
    return subprocess.run(command, capture_output=True, text=True)


# -- ids ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ALL_MODES, indirect=True)
def test_a_stream_made_after_a_restart_with_the_same_clock_has_an_etag_of_its_own(
    server: SetClockServer, mode: str
) -> None:
    """The id of a deleted stream must not come again: a cache would show the old content."""
    path = f"{ROOT}/page"
    server.stop_clock(START_MS)
    server.restart(kill=True)
    httpx.put(server.url + path, content="first", headers=TEXT)
    etag = read(server, path).headers["etag"]
    assert httpx.delete(server.url + path).status_code == 204
    server.restart(kill=True)
    httpx.put(server.url + path, content="other", headers=TEXT)
    again = read(server, path, **{"if-none-match": etag})
    assert again.status_code == 200
    assert again.content == b"other"
    assert again.headers["etag"] != etag


@pytest.mark.parametrize("mode", KEPT_MODES, indirect=True)
def test_restarts_with_ever_earlier_clocks_leave_a_server_that_stays_up(
    server: SetClockServer, mode: str, tmp_path: Path
) -> None:
    kept = f"{ROOT}/kept"
    httpx.put(server.url + kept, content="kept", headers=TEXT)
    for life in range(1, 3):
        for number in range(10):
            path = f"{server.url}{ROOT}/{life}/{number}"
            assert httpx.put(path, content=b"x" * 4096, headers=TEXT).status_code == 201
            assert httpx.delete(path).status_code == 204
        server.set_clock(-life * DAY)
        server.restart(kill=True)
    # Enough for several checkpoints over what the lives before have left.
    for _ in range(20):
        assert httpx.post(server.url + kept, content=b"y" * 4096, headers=TEXT).status_code == 204
    eventually(
        lambda: mode == "acid" or len(list((tmp_path / "data/journal").glob("segment-*"))) <= 2,
        "checkpoints have carried the journal over",
    )
    assert httpx.get(f"{server.url}/readyz").status_code == 200
    assert server.stop() == 0, "".join(server.log)
    found = verify(tmp_path / "data")
    assert found.returncode == 0, found.stdout


# -- clocks that are set -------------------------------------------------------------------------


def create(server: SetClockServer, name: str, **headers: str) -> str:
    path = f"{ROOT}/{name}"
    answer = httpx.put(server.url + path, content="x", headers={**TEXT, **headers})
    assert answer.status_code == 201, answer.text
    return path


def answers(server: SetClockServer, path: str, status: int) -> bool:
    """HEAD is not use: it renews nothing."""
    return httpx.head(server.url + path).status_code == status


@pytest.mark.parametrize("mode", ["memory", "file-durable"], indirect=True)
def test_setting_the_clock_ends_no_window_and_keeps_none_open(server: SetClockServer) -> None:
    long = create(server, "long", **{"stream-ttl": str(HOUR)})
    fixed = create(server, "fixed", **{"stream-expires-at": "2038-01-01T00:00:00Z"})
    server.set_clock(20 * 365 * DAY)
    eventually(lambda: answers(server, fixed, 404), "an absolute deadline follows the clock")
    assert read(server, long).content == b"x"
    short = create(server, "short", **{"stream-ttl": "1"})
    server.set_clock(-DAY)
    eventually(lambda: answers(server, short, 404), "a window ends though the clock was set back")
    assert read(server, long).content == b"x"


@pytest.mark.parametrize("mode", ["file-durable"], indirect=True)
@pytest.mark.parametrize("when", ["while it runs", "at a restart"])
def test_a_lease_runs_out_though_the_clock_was_set_back(server: SetClockServer, when: str) -> None:
    with httpx.Client(base_url=server.url) as client:
        api = Api(client)
        api.create("wake")
        api.create("a")
        id = api.pull_wake("wake", streams=["a", "b"], lease_ttl_ms=1000)
        api.append("a", {"n": 1})
        api.claim(id, "first")
        server.set_clock(-DAY)
        if when == "while it runs":
            # Whatever happens to a subscription sets its timer again.
            assert client.delete(f"{api.url(id)}/streams/b").status_code == 204
    if when == "at a restart":
        server.restart(kill=True)
    with httpx.Client(base_url=server.url) as client:
        again = Api(client)
        eventually(
            lambda: again.post(id, "claim", worker="second").status_code == 200,
            "the lease of the first has run out",
            secs=30,
        )


# -- disks that are full -------------------------------------------------------------------------


@pytest.fixture
def process(mode: str, small_disk: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(settings(mode, small_disk / "data"), cwd=str(tmp_path))
    server.start()
    yield server
    if server.is_running:
        assert server.stop() == 0, "".join(server.log)


def faults(server: ServerProcess) -> list[str]:
    return [line for line in server.log if "Traceback" in line or " critical " in line]


@pytest.mark.parametrize("mode", DURABLE_MODES, indirect=True)
def test_a_disk_without_a_byte_left_refuses_writes_and_nothing_else(
    process: ServerProcess, small_disk: Path
) -> None:
    with httpx.Client(base_url=f"{process.url}{ROOT}", timeout=30) as client:
        for number in range(40):
            assert client.put(f"/{number}", content=b"x" * 9000, headers=TEXT).status_code == 201
        ballast = fill(small_disk)

        def append() -> httpx.Response:
            return client.post("/0", content="y", headers=TEXT)

        eventually(lambda: append().status_code == 507, "an append is refused")
        refused = append()
        assert refused.json()["type"].endswith("insufficient-storage")
        assert int(refused.headers["retry-after"]) > 0
        assert client.put("/new", headers=TEXT).status_code == 507
        assert httpx.get(f"{process.url}/readyz").status_code == 507
        assert httpx.get(f"{process.url}/healthz").status_code == 200
        for number in range(1, 40):
            assert client.get(f"/{number}", params={"offset": "-1"}).content == b"x" * 9000
            assert client.delete(f"/{number}").status_code == 204
        assert client.get("/1").status_code == 404
        ballast.unlink()
        eventually(lambda: append().status_code == 204, "there is room again")
        assert process.is_running
        process.kill()
    process.url = ""
    process.start()
    with httpx.Client(base_url=f"{process.url}{ROOT}") as client:
        kept = client.get("/0", params={"offset": "-1"}).content
        assert kept[:9000] == b"x" * 9000
        assert set(kept[9000:]) == {ord("y")}
        assert [client.head(f"/{number}").status_code for number in range(1, 40)] == [404] * 39
    assert not faults(process), "".join(process.log)


@pytest.mark.parametrize("mode", DURABLE_MODES, indirect=True)
def test_where_every_byte_that_is_given_back_is_taken_deletes_are_refused_in_time(
    process: ServerProcess, small_disk: Path
) -> None:
    """There is nothing left to write down that something is gone: 507, and no stall."""
    with httpx.Client(base_url=f"{process.url}{ROOT}", timeout=30) as client:
        for number in range(40):
            assert client.put(f"/{number}", content=b"x" * 9000, headers=TEXT).status_code == 201
        deleted = set()
        for number in range(1, 40):
            ballast = fill(small_disk)
            status = client.delete(f"/{number}").status_code
            assert status in (204, 404, 507)
            if status == 204:
                deleted.add(number)
            assert client.get("/0", params={"offset": "-1"}).content == b"x" * 9000
        ballast.unlink()
        eventually(
            lambda: client.post("/0", content="y", headers=TEXT).status_code == 204,
            "there is room again",
        )
        process.kill()
    process.url = ""
    process.start()
    with httpx.Client(base_url=f"{process.url}{ROOT}") as client:
        assert client.head("/0").status_code == 200
        assert {client.head(f"/{number}").status_code for number in deleted} <= {404}
    assert not faults(process), "".join(process.log)


@pytest.mark.parametrize("mode", DURABLE_MODES, indirect=True)
@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_start_on_a_full_disk_serves_reads_and_goes_on_when_there_is_room(
    process: ServerProcess, small_disk: Path, kill: bool
) -> None:
    with httpx.Client(base_url=f"{process.url}{ROOT}") as client:
        for number in range(12):
            client.put(f"/{number}", content=b"x" * 9000, headers=TEXT)
        client.delete("/11")
        ballast = fill(small_disk)
        (process.kill if kill else process.stop)()
    fill(small_disk)
    process.url = ""
    process.start()
    with httpx.Client(base_url=f"{process.url}{ROOT}", timeout=30) as client:
        for number in range(11):
            assert client.get(f"/{number}", params={"offset": "-1"}).content == b"x" * 9000
        assert client.get("/11").status_code == 404
        assert client.post("/0", content="y", headers=TEXT).status_code == 507
        assert httpx.get(f"{process.url}/readyz").status_code == 507
        ballast.unlink()

        def append() -> bool:
            return client.post("/0", content="y", headers=TEXT).status_code == 204

        eventually(append, "there is room again")
        assert client.delete("/1").status_code == 204
    assert not faults(process), "".join(process.log)


@pytest.mark.parametrize(
    ("mode", "kill"),
    [("acid", True), ("file-durable", True), ("file-durable", False), ("file-fast", True)],
    indirect=["mode"],
)
def test_a_start_on_a_read_only_disk_serves_reads(
    process: ServerProcess, small_disk: Path, kill: bool
) -> None:
    with httpx.Client(base_url=f"{process.url}{ROOT}") as client:
        for number in range(12):
            client.put(f"/{number}", content=b"x" * 9000, headers=TEXT)
        (process.kill if kill else process.stop)()
    mount(small_disk, "-o", "remount,ro")
    process.url = ""
    process.start()
    with httpx.Client(base_url=f"{process.url}{ROOT}", timeout=30) as client:
        for number in range(12):
            assert client.get(f"/{number}", params={"offset": "-1"}).content == b"x" * 9000
        refusals = [
            client.post("/0", content="y", headers=TEXT),
            client.put("/new", headers=TEXT),
            client.delete("/0"),
            httpx.get(f"{process.url}/readyz"),
        ]
        assert [refusal.status_code for refusal in refusals] == [503] * 4
        assert all(one.json()["type"].endswith("storage-read-only") for one in refusals)
        assert client.get("/none").status_code == 404
    assert process.stop() == 0, "".join(process.log)
    assert not faults(process), "".join(process.log)
    found = verify(small_disk / "data")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("mode", DURABLE_MODES)
def test_a_new_directory_on_a_full_disk_is_refused_with_a_sentence(
    mode: str, small_disk: Path, tmp_path: Path
) -> None:
    fill(small_disk)
    server = ServerProcess(settings(mode, small_disk / "data"), cwd=str(tmp_path))
    try:
        with pytest.raises(RuntimeError):
            server.start()
    finally:
        if server.is_running:
            server.kill()
    assert not faults(server), "".join(server.log)
    assert server.log[-1].count("\n") == 1
    assert "No space left" in server.log[-1] or "full" in server.log[-1]
