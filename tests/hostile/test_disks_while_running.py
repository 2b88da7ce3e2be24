"""A disk that fills up or turns read-only under a running server, as docs/operating.md says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.conftest import stop_cleanly
from tests.durability.full_disk import fill
from tests.durability.modes import DURABLE_MODES, KEPT_MODES, settings
from tests.hostile.disks import FailingDisk, failing_disk, small_disk

__all__ = ["failing_disk", "small_disk"]

pytestmark = pytest.mark.slow

ROOT = "/v1/stream"
TEXT = {"content-type": "text/plain"}
# More than what the server can free for itself: 4 MiB of ballast, and segments of 64 KiB.
LARGE = b"z" * (8 * 1024 * 1024)
PROBLEM = "urn:headrace:problem:"


@contextmanager
def serving(mode: str, disk: Path, directory: Path) -> Iterator[tuple[ServerProcess, httpx.Client]]:
    server = ServerProcess(settings(mode, disk / "data"), cwd=str(directory))
    server.start()
    try:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            yield server, client
        stop_cleanly(server)
    finally:
        if server.is_running:
            server.kill()


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix(PROBLEM)


def logged(server: ServerProcess, words: str) -> bool:
    return any(words in line for line in server.log)


@pytest.mark.parametrize("mode", DURABLE_MODES)
def test_an_accepted_append_that_finds_no_room_is_commit_delayed_and_written_later(
    mode: str, small_disk: Path, tmp_path: Path
) -> None:
    with serving(mode, small_disk, tmp_path) as (server, client):
        stream = f"{ROOT}/delayed"
        assert client.put(stream, content="first", headers=TEXT).status_code == 201
        assert client.put(f"{ROOT}/doomed", headers=TEXT).status_code == 201
        refused: list[tuple[int, str]] = []

        def is_delayed() -> bool:
            """Accepted before the server has seen that the disk is full."""
            (small_disk / "somebody else's").unlink(missing_ok=True)
            eventually(lambda: client.get("/readyz").status_code == 200, "there is room")
            fill(small_disk)
            answer = client.post(stream, content=LARGE, headers=TEXT)
            assert answer.status_code in (500, 507), answer.text
            refused.append(problem(answer))
            return refused[-1] == (500, "commit-delayed")

        eventually(is_delayed, "an append is accepted and then finds no room")
        assert set(refused) <= {(500, "commit-delayed"), (507, "insufficient-storage")}
        later = client.post(stream, content="later", headers=TEXT)
        assert problem(later) == (507, "insufficient-storage")
        assert problem(client.delete(f"{ROOT}/doomed")) == (507, "insufficient-storage")
        assert client.get(stream, params={"offset": "-1"}).content == b"first"
        eventually(lambda: logged(server, "writes are refused"), "the log says so")
        (small_disk / "somebody else's").unlink()
        end = f"{2:016d}_{len(LARGE) + 5:016d}"

        def is_written() -> bool:
            return client.head(stream).headers["stream-next-offset"] == end

        eventually(is_written, "the delayed append is written")
        eventually(lambda: logged(server, "writes are accepted again"), "the log says so")
        assert client.delete(f"{ROOT}/doomed").status_code == 204
        assert client.post(stream, content="!", headers=TEXT).status_code == 204
        server.kill()
        server.url = ""
        server.start()
        again = httpx.get(f"{server.url}{stream}", params={"offset": f"{1:016d}_{5:016d}"})
        assert again.content[: len(LARGE)] == LARGE[: len(again.content)]
        assert httpx.head(f"{server.url}{stream}").headers["stream-next-offset"] > end


@pytest.mark.parametrize("mode", KEPT_MODES)
def test_a_disk_that_turns_read_only_under_a_server_refuses_writes_and_nothing_else(
    mode: str, failing_disk: FailingDisk, tmp_path: Path
) -> None:
    with serving(mode, failing_disk.path, tmp_path) as (server, client):
        for number in range(30):
            body = b"%03d" % number * 3000
            assert client.put(f"{ROOT}/{number}", content=body, headers=TEXT).status_code == 201
        failing_disk.fail()

        def refusal() -> tuple[int, str]:
            answer = client.post(f"{ROOT}/0", content="y", headers=TEXT)
            return (204, "") if answer.status_code == 204 else problem(answer)

        read_only = (503, "storage-read-only")
        met = [refusal()]
        while met[-1] != read_only and len(met) < 100:
            met.append(refusal())
        # What was on its way when it happened may have been accepted.
        assert set(met) <= {(204, ""), (500, "commit-delayed"), read_only}, met
        assert met[-1] == read_only
        assert problem(client.put(f"{ROOT}/new", headers=TEXT)) == read_only
        assert problem(client.delete(f"{ROOT}/1")) == read_only
        assert problem(client.get("/readyz")) == read_only
        assert client.get("/healthz").status_code == 200
        for number in range(1, 30):
            found = client.get(f"{ROOT}/{number}", params={"offset": "-1"})
            assert found.content == b"%03d" % number * 3000
        eventually(lambda: logged(server, "writes are refused"), "the log says so")
        assert server.is_running
    failing_disk.repair()
    with serving(mode, failing_disk.path, tmp_path) as (server, client):
        for number in range(30) if mode in DURABLE_MODES else ():
            found = client.get(f"{ROOT}/{number}", params={"offset": "-1"})
            assert found.content.startswith(b"%03d" % number * 3000)
        assert client.put(f"{ROOT}/new", content="y", headers=TEXT).status_code == 201
