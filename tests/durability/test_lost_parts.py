"""A part of a data directory that is lost is named, and never begun anew.

A journal that began again would give offsets a second time, to other bytes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from tests.durability.modes import settings

S = "/v1/stream/kept"
TEXT = {"content-type": "text/plain"}


def used(mode: str, directory: Path) -> dict[str, str]:
    """A directory whose stream is in files, with one append that only a kill left behind."""
    env = settings(mode, directory)
    with ServerProcess(env) as server:
        httpx.put(server.url + S, content="A", headers=TEXT)
    killed = ServerProcess(env)
    killed.start()
    httpx.post(killed.url + S, content="B", headers=TEXT)
    killed.kill()
    return env


def refusal_of(env: dict[str, str]) -> str:
    with pytest.raises(RuntimeError, match="did not start") as refused, ServerProcess(env):
        pass
    return str(refused.value)


@pytest.mark.parametrize("lost", ["directory", "last and segments", "last, segments and catalog"])
def test_a_lost_journal_stops_the_start(tmp_path: Path, lost: str) -> None:
    data = tmp_path / "data"
    env = used("file-fast", data)
    if lost == "directory":
        shutil.rmtree(data / "journal")
    else:
        for file in (data / "journal").iterdir():
            if file.name == "last" or file.name.startswith("segment-"):
                file.unlink()
    if lost.endswith("catalog"):
        shutil.rmtree(data / "catalog")
    assert "journal/last: the file is missing" in refusal_of(env)


def test_a_lost_acid_directory_stops_the_start_where_snapshots_remain(tmp_path: Path) -> None:
    data = tmp_path / "data"
    env = used("acid", data)
    (data / "snapshots" / "00").mkdir(parents=True, exist_ok=True)
    shutil.rmtree(data / "acid")
    assert "acid/manifest.json: the file is missing" in refusal_of(env)
