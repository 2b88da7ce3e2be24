"""A file that is missing costs the streams in it, or stops a start with its name."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest

from headrace.storage.verify import verify
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS

TEXT = {"Content-Type": "text/plain"}


@pytest.mark.slow
def test_a_missing_pack_stops_no_start_and_a_missing_catalog_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    env = settings(directory)
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


@pytest.mark.slow
def test_what_is_not_a_file_in_place_of_a_journal_segment_is_named(tmp_path: Path) -> None:
    """A link that leads nowhere, or a directory: of the segment there is, and of the next one."""
    sound, directory = tmp_path / "sound", tmp_path / "data"
    with (
        ServerProcess(settings(sound), cwd=str(tmp_path)) as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client,
    ):
        assert client.put("/v1/stream/a", content="x", headers=TEXT).status_code == 201
        server.kill()
    [segment] = (sound / "journal").glob("segment-*")
    following = f"segment-{int(segment.name.partition('-')[2], 16) + 1:016x}"
    for name in (segment.name, following):
        for make in (Path.mkdir, lambda path: path.symlink_to(tmp_path / "nowhere")):
            shutil.copytree(sound, directory)
            path = directory / "journal" / name
            path.unlink(missing_ok=True)
            make(path)
            with pytest.raises(RuntimeError) as refused:
                ServerProcess(settings(directory), cwd=str(tmp_path)).start()
            assert str(path) in str(refused.value)
            assert "Traceback" not in str(refused.value)
            report = verify(directory)
            assert report is not None
            assert [finding for finding in report.findings if str(path) in finding]
            shutil.rmtree(directory)


def settings(directory: Path) -> dict[str, str]:
    return {"DS_STORAGE__MODE": "file-durable", "DS_STORAGE__DATA_DIR": str(directory)}
