"""A sync that fails for real: strace makes the kernel answer EIO, and the server stops as it says.

Nothing is acknowledged from there on, whoever waits is answered, readiness turns red, reads go on
for a moment, the process exits non-zero, and the next one serves everything that was acknowledged.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.durability import strace
from tests.durability.campaign import mutant
from tests.durability.modes import settings
from tests.http.uvicorn import Uvicorn

pytestmark = pytest.mark.slow

S = "/v1/stream/synced"
TEXT = {"content-type": "text/plain"}
DEADLINE_SECS = 30.0
WRITERS = 16
SYNCED_MODES = ["acid", "file-durable"]


@contextmanager
def failing_syncs(pid: int, log: Path) -> Iterator[None]:
    """Every sync of a process fails with EIO; skips where processes may not be traced."""
    program = strace.find()
    if program is None:
        pytest.skip(strace.MISSING)
    calls = "fdatasync,fsync,msync,sync_file_range,syncfs"
    command = [str(program), "-f", "-p", str(pid), "-e", f"trace={calls}"]
    command += ["-e", f"inject={calls}:error=EIO"]
    with log.open("w") as output:
        tracer = subprocess.Popen(command, stderr=output, env=strace.environment())
    try:
        eventually(lambda: "attached" in log.read_text() or tracer.poll() is not None, "strace")
        if tracer.poll() is not None:
            pytest.skip(f"strace cannot attach here: {log.read_text().strip()}")
        yield
    finally:
        tracer.terminate()
        tracer.wait(DEADLINE_SECS)


@pytest.fixture(params=SYNCED_MODES)
def env(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    return settings(request.param, tmp_path / "data")


def test_a_failed_sync_stops_the_server_and_loses_nothing(
    env: dict[str, str], tmp_path: Path
) -> None:
    server = ServerProcess(env, cwd=str(tmp_path))
    server.start()
    with httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client:
        client.put(S, headers=TEXT)
        acknowledged = [f"{number}\n" for number in range(50)]
        for line in acknowledged:
            assert client.post(S, content=line, headers=TEXT).status_code == 204
        with failing_syncs(server.pid, tmp_path / "strace.log"):
            statuses = write_at_once(server.url)
            assert statuses <= {500, 503}, "nothing is acknowledged after a failed sync"
            refused = client.post(S, content="late\n", headers=TEXT)
            assert refused.status_code == 503
            assert refused.json()["type"].endswith("storage-failed")
            assert httpx.get(f"{server.url}/readyz").status_code == 503
            assert httpx.get(f"{server.url}/healthz").status_code == 200
            read = httpx.get(f"{server.url}{S}", params={"offset": "-1"})
            assert read.text == "".join(acknowledged), "no reader sees what is not durable"
            assert server.wait() == 1
    assert any("storage failed" in line for line in server.log), server.log
    with ServerProcess(env, cwd=str(tmp_path)) as again:
        kept = httpx.get(f"{again.url}{S}", params={"offset": "-1"}).text
        assert kept.startswith("".join(acknowledged))
        assert "late" not in kept


def write_at_once(url: str) -> set[int]:
    """Many appends, closes and questions while the syncs fail: the statuses of the answers."""

    def write(number: int) -> int:
        path = S if number % 2 else f"{S}/new/{number}"
        method = "POST" if number % 2 else "PUT"
        body = f"lost {number}\n"
        answer = httpx.request(
            method, url + path, content=body, headers=TEXT, timeout=DEADLINE_SECS
        )
        return answer.status_code

    with ThreadPoolExecutor(WRITERS) as threads:
        return set(threads.map(write, range(WRITERS)))


def test_a_mounted_application_stops_its_process_and_loses_nothing(tmp_path: Path) -> None:
    env = settings("file-durable", tmp_path / "data") | {"DS_SERVER__DRAIN_SECS": "1"}
    mounted = Uvicorn(tmp_path / "log", **env)
    try:
        url = f"{mounted.url}/streams"
        assert httpx.put(url + S, headers=TEXT).status_code == 201
        assert httpx.post(url + S, content="kept", headers=TEXT).status_code == 204
        with failing_syncs(mounted.pid, tmp_path / "strace.log"):
            assert write_at_once(url) <= {500, 503}
            assert httpx.get(f"{url}/readyz").status_code == 503
            mounted.wait()
    finally:
        mounted.stop()
    assert "the application stops" in mounted.log
    with ServerProcess(env, cwd=str(tmp_path)) as again:
        assert httpx.get(f"{again.url}{S}", params={"offset": "-1"}).text.startswith("kept")


@pytest.mark.parametrize("mode", SYNCED_MODES)
def test_a_server_that_ignores_failed_syncs_is_caught(mode: str, tmp_path: Path) -> None:
    """The mutant never syncs: then none fails, and it acknowledges."""
    env = settings(mode, tmp_path / "data") | mutant("no_sync")
    with ServerProcess(env, cwd=str(tmp_path)) as server:
        httpx.put(server.url + S, headers=TEXT)
        with failing_syncs(server.pid, tmp_path / "strace.log"):
            assert 204 in write_at_once(server.url)
