"""The compiled build passes the official suite, too. It is one source with the pure one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.server_process import ServerProcess
from tests.conformance import test_official_suite as suite

COMPILED = Path(__file__).parents[2] / "build" / "compiled"

pytestmark = [
    *suite.pytestmark,
    pytest.mark.skipif(
        not (COMPILED / ".built").exists(),
        reason="there is no compiled build: run `make compiled` (needs a C compiler)",
    ),
]


def test_the_build_under_test_is_the_compiled_one() -> None:
    shown = subprocess.run(
        [
            sys.executable,
            "-c",
            "import headrace.http.connections.reader as found; print(found.__file__)",
        ],
        env={"PYTHONPATH": str(COMPILED)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip().endswith(".so")


@pytest.mark.parametrize("mode", ["memory", "file-fast", "file-durable", "acid"])
def test_the_compiled_server_passes_the_official_suite(tmp_path: Path, mode: str) -> None:
    env = {
        "PYTHONPATH": str(COMPILED),
        "DS_STORAGE__MODE": mode,
        "DS_STORAGE__DATA_DIR": str(tmp_path / "data"),
    }
    with ServerProcess(env=suite.SERVER_ENV | env) as server:
        suite.assert_suite_passes(server.url, tmp_path / "report.json")
