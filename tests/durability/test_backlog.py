"""Appends that come faster than stream files can be written: held back, and nobody sent away."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from tests.durability.small_backlog import BACKLOG_BYTES_MAX, SmallBacklog

S = "/v1/stream/s"
TEXT = {"Content-Type": "text/plain"}
BODY = b"x" * (BACKLOG_BYTES_MAX // 2 + 1)


def check_held_back(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url) as client:
        refused = client.post(S, content=b"y", headers=TEXT)
        assert refused.status_code == 503
        assert refused.json()["type"].endswith("overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        assert client.get(S, params={"offset": "-1"}).content == 2 * BODY
        assert client.get("/readyz").status_code == 200, "readers have no other server"


@pytest.mark.parametrize("mode", ["file-durable", "file-fast"])
def test_more_is_refused_for_a_moment_and_reads_go_on(tmp_path: Path, mode: str) -> None:
    def served() -> ServerProcess:
        env = {"DS_STORAGE__MODE": mode, "DS_STORAGE__DATA_DIR": str(tmp_path / "data")}
        return SmallBacklog(env, cwd=str(Path(__file__).parents[2]))

    with served() as server:
        with httpx.Client(base_url=server.url) as client:
            client.put(S, headers=TEXT)
            for _ in range(2):
                assert client.post(S, content=BODY, headers=TEXT).status_code == 204
        check_held_back(server)
        server.kill()
    with served() as server:
        check_held_back(server)
    with served() as server, httpx.Client(base_url=server.url) as client:
        assert client.post(S, content=b"y", headers=TEXT).status_code == 204, "all is in files"
        assert client.get(S, params={"offset": "-1"}).content == 2 * BODY + b"y"
