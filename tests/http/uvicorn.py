"""Applications of examples/ under uvicorn, each as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from headrace.testing.waiting import DEADLINE_SECS, eventually

ROOT = Path(__file__).parents[2]
MOUNT = "/streams"  # where the example mounts it


class Uvicorn:
    """An application of examples/ in a process of its own."""

    def __init__(
        self, log: Path, *, app: str = "examples.mounted_in_fastapi:app", **settings: str
    ) -> None:
        self._log = log
        command = [sys.executable, "-m", "uvicorn", app]
        command += ["--host", "127.0.0.1", "--port", "0"]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("DS_")}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=inherited | settings, stdout=output, stderr=output
            )
        eventually(self._listens, "uvicorn listens")
        self.port = int(self.log.partition("running on http://127.0.0.1:")[2].split()[0])
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8")

    def _listens(self) -> bool:
        assert self._process.poll() is None, self.log
        return "(Press CTRL+C to quit)" in self.log

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> int:
        """Wait until it ends by itself; the exit code."""
        return self._process.wait(DEADLINE_SECS)

    def stop(self) -> int:
        """SIGTERM and wait; the exit code."""
        self._process.terminate()
        try:
            return self._process.wait(DEADLINE_SECS)
        finally:
            self._process.kill()


def assert_clean(uvicorn: Uvicorn, code: int) -> None:
    log = uvicorn.log
    assert "Application shutdown complete." in log, log
    for fault in ("Traceback", "ERROR", "never awaited", "was destroyed but it is pending"):
        assert fault not in log, log
    assert code in (0, -15), log  # uvicorn raises the signal again once it has shut down
