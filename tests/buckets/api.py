"""What the tests of the bucket surface say often."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import httpx

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS
from tests.conftest import stop_cleanly
from tests.durability.modes import settings

MODES = ["memory", "file-fast", "file-durable", "acid"]
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
OCTETS = {"Content-Type": "application/octet-stream"}
CLOSE = {"Stream-Closed": "true"}


class Mortal:
    """A server that is killed and started again over one data directory."""

    def __init__(self, mode: str, directory: Path, **env: str) -> None:
        self._env = settings(mode, directory / "data") | env
        self._directory = directory
        self.data = directory / "data"

    def __enter__(self) -> Mortal:
        self._start()
        return self

    def _start(self) -> None:
        self.server = ServerProcess(self._env, cwd=str(self._directory))
        self.server.start()
        self.client = httpx.Client(base_url=self.server.url, timeout=DEADLINE_SECS)

    def forget_settings(self) -> None:
        """From the next start on all settings but the storage's are the defaults."""
        self._env = {key: self._env[key] for key in self._env if key.startswith("DS_STORAGE__")}

    def restart(self, *, kill: bool) -> None:
        self.client.close()
        if kill:
            self.server.kill()
        else:
            stop_cleanly(self.server)
        self._start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()
        stop_cleanly(self.server)
