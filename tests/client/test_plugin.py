"""The pytest plugin gives servers to whoever tests against one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from headrace.client import Client
from headrace.testing.in_process import InProcessServer

THEIR_TESTS = """
from headrace.client import Client


def test_a_process(headrace_client, headrace_server):
    stream = headrace_client.stream("orders")
    stream.create("application/json")
    stream.append_json({"id": 1})
    assert stream.read_json() == [{"id": 1}]
    assert headrace_server.is_running


def test_in_process(headrace_in_process):
    with Client(headrace_in_process.url) as client:
        assert client.stream("orders").create("text/plain").created
"""


def test_a_project_that_installs_headrace_has_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(THEIR_TESTS)
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "2 passed" in finished.stdout, finished.stdout + finished.stderr


def test_servers_in_process_do_not_share_anything() -> None:
    with (
        InProcessServer() as one,
        InProcessServer() as other,
        Client(one.url) as first,
        Client(other.url) as second,
    ):
        assert first.stream("s").create("text/plain", data="x").created
        assert second.stream("s").create("text/plain").created
        assert second.stream("s").read_bytes() == b""
