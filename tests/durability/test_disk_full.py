"""A full disk refuses writes and nothing else, and the server recovers without a restart."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import catch_up
from headrace.testing.waiting import eventually
from tests.durability.modes import DURABLE_MODES, settings

pytestmark = pytest.mark.slow

ROOT = "/v1/stream"
S = f"{ROOT}/kept"
TEXT = {"content-type": "text/plain"}
DISK_BYTES = 64 * 1024 * 1024
DEADLINE_SECS = 30.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "headrace", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.fixture(params=DURABLE_MODES)
def server(
    request: pytest.FixtureRequest, small_disk: Path, tmp_path: Path
) -> Iterator[ServerProcess]:
    env = settings(request.param, small_disk / "data")
    process = ServerProcess(env, cwd=str(tmp_path))
    process.start()
    yield process
    assert process.is_running, "".join(process.log)
    assert process.stop() == 0, "".join(process.log)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client:
        client.put(S, content="kept", headers=TEXT)
        client.put(f"{S}/doomed", content="doomed", headers=TEXT)
        yield client


def answers(ask: Callable[[], httpx.Response], status: int) -> Callable[[], bool]:
    return lambda: ask().status_code == status


def test_writes_are_refused_reads_and_deletes_go_on_and_room_lets_writes_in_again(
    client: httpx.Client, small_disk: Path
) -> None:
    def write() -> httpx.Response:
        return client.post(f"{S}/other", content="x", headers=TEXT)

    client.put(f"{S}/other", headers=TEXT)
    free = os.statvfs(small_disk)
    leave = free.f_blocks * free.f_frsize // 16
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(free.f_bavail * free.f_frsize - leave))
    eventually(answers(write, 507), "an append is refused for lack of room")
    refused = client.put(f"{S}/new", headers=TEXT)
    assert refused.status_code == 507
    assert refused.json()["type"].endswith("insufficient-storage")
    assert client.get(S, params={"offset": "-1"}).content == b"kept"
    assert client.delete(f"{S}/doomed").status_code == 204
    assert client.get(f"{S}/doomed").status_code == 404
    ballast.unlink()
    eventually(answers(write, 204), "an append is accepted once there is room")
    assert client.put(f"{S}/new", headers=TEXT).status_code == 201


def test_appends_that_fill_the_disk_are_refused_before_it_is_full(client: httpx.Client) -> None:
    """The server itself takes the last room: it must stop short of a commit that fails."""
    body = b"x" * 256 * 1024
    accepted = 0
    status = 0
    for number in range(2 * DISK_BYTES // len(body)):
        path = f"{S}/large/{number // 16}"
        client.put(path, headers=TEXT)
        status = client.post(path, content=body, headers=TEXT).status_code
        if status != 204:
            break
        accepted += 1
    assert accepted > 0
    assert status == 507
    assert client.get(S, params={"offset": "-1"}).content == b"kept"
    stored = sum(
        len(answer.content)
        for number in range(accepted // 16 + 1)
        for answer in catch_up(client, f"{S}/large/{number}")
    )
    assert stored == accepted * len(body)


def test_deleting_streams_makes_room(client: httpx.Client) -> None:
    body = b"x" * 256 * 1024
    made = []
    for number in range(2 * DISK_BYTES // len(body)):
        path = f"{S}/large/{number}"
        if client.put(path, content=body, headers=TEXT).status_code != 201:
            break
        made.append(path)
    for path in made:
        assert client.delete(path).status_code == 204
    eventually(
        lambda: client.put(f"{S}/again", content=body, headers=TEXT).status_code in (200, 201),
        "there is room again",
        secs=10,
    )


def test_a_small_disk_has_room_for_streams_with_default_settings(
    small_disk: Path, tmp_path: Path
) -> None:
    """Journal segments are cut to the disk: at their usual size one of them would fill it."""
    env = {
        "DS_STORAGE__MODE": "file-durable",
        "DS_STORAGE__DATA_DIR": str(small_disk / "data"),
        "DS_LIMITS__MAX_STREAM_BYTES": str(DISK_BYTES),
    }
    with (
        ServerProcess(env, cwd=str(tmp_path)) as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client,
    ):

        def append() -> httpx.Response:
            return client.post(S, content=bytes(1 << 20), headers=TEXT)

        client.put(S, headers=TEXT)
        accepted = 0
        while append().status_code == 204:
            accepted += 1
        assert accepted >= 16, "a quarter of the disk"
        assert client.delete(S).status_code == 204
        again = answers(lambda: client.put(S, headers=TEXT), 201)
        eventually(again, "what was deleted gives room to write again")
        assert append().status_code == 204
