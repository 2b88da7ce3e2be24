"""The official TypeScript client reads, tails, appends and closes against our server."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.testing.server_process import ServerProcess

SUITE = Path(__file__).parents[1] / "conformance"
TIMEOUT_SECS = 120


@pytest.mark.slow
def test_the_official_typescript_client_writes_tails_closes_and_reads() -> None:
    node = shutil.which("node")
    installed = (SUITE / "node_modules" / "@durable-streams" / "client").is_dir()
    assert node, "the client of the npm registry needs Node"
    assert installed, "make test installs it"
    with ServerProcess() as server:
        finished = subprocess.run(
            [node, "typescript.mjs", server.url],
            cwd=SUITE,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECS,
            check=False,
        )
    assert finished.returncode == 0, finished.stderr
    told = json.loads(finished.stdout)
    everything = [{"n": number} for number in range(51)]
    assert told == {"tailed": everything, "items": everything, "closed": True}
