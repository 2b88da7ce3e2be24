"""A file that is missing from the data directory costs the streams in it, and no start."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS

TEXT = {"Content-Type": "text/plain"}


@pytest.mark.slow
def test_a_missing_pack_stops_no_start_and_a_missing_catalog_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    env = {"DS_STORAGE__MODE": "file-durable", "DS_STORAGE__DATA_DIR": str(directory)}
    with (
        ServerProcess(env, cwd=str(tmp_path)) as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client,
    ):
        for name in ("a", "b"):
            assert client.put(f"/v1/stream/{name}", content="x", headers=TEXT).status_code == 201
    [pack] = (directory / "packs").iterdir()
    pack.unlink()
    with (
        ServerProcess(env, cwd=str(tmp_path)) as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client,
    ):
        assert client.get("/v1/stream/a").status_code == 500
        assert client.delete("/v1/stream/a").status_code == 204
        assert client.put("/v1/stream/a", content="z", headers=TEXT).status_code == 201
        assert client.get("/v1/stream/a").content == b"z"
        announced = client.get("/v1/stream/__registry__", params={"offset": "-1"}).text
    assert '"key":"b"' in announced
    assert any("a read found damaged bytes" in line for line in server.log)
    for log in (directory / "catalog").glob("log-*"):
        log.unlink()
    with pytest.raises(RuntimeError, match=r"catalog/log-\d+ is missing from the data directory"):
        ServerProcess(env, cwd=str(tmp_path)).start()
