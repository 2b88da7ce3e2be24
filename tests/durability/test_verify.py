"""`headrace verify` finds what was damaged, says where, and finds nothing in what was not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.durability.modes import DURABLE_MODES, SEGMENT_BYTES, settings

pytestmark = pytest.mark.slow

STREAM = "/v1/stream/checked"
BYTES = {"content-type": "application/octet-stream"}
MARK = b"a mark that stands nowhere else"


def fill(mode: str, directory: Path) -> None:
    """More than a journal segment, so that the file modes have stream files."""
    with ServerProcess(settings(mode, directory), cwd=str(directory.parent)) as server:
        with httpx.Client(base_url=server.url) as client:
            client.put(STREAM, headers=BYTES)
            client.post(STREAM, content=MARK, headers=BYTES)
            for _ in range(4):
                client.post(STREAM, content=bytes(SEGMENT_BYTES // 2), headers=BYTES)
        eventually(
            lambda: mode == "acid" or bool(list(directory.glob("streams/*/*.data"))),
            "the first segment is in stream files",
        )


def verify(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.cli", "verify", str(directory)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(params=DURABLE_MODES)
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    fill(request.param, tmp_path / "data")
    return tmp_path / "data"


def test_a_sound_directory_is_found_sound(directory: Path) -> None:
    found = verify(directory)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.splitlines()[-1].endswith(" 0 damaged")


def test_a_flipped_bit_in_a_streams_bytes_is_found(directory: Path) -> None:
    holders = [
        path
        for path in directory.rglob("*")
        if path.is_file() and path.parent.name != "journal" and MARK in path.read_bytes()
    ]
    assert len(holders) == 1, holders
    # All of them: LMDB leaves copies behind on pages that no longer count.
    flipped = bytes([MARK[0] ^ 1]) + MARK[1:]
    holders[0].write_bytes(holders[0].read_bytes().replace(MARK, flipped))
    found = verify(directory)
    assert found.returncode == 1, found.stdout
    assert "fails its checksum" in found.stdout


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    found = verify(tmp_path)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
