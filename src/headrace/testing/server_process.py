"""A real server process on a free port, for black-box tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType

START_DEADLINE_SECS = 120.0  # a machine may be busy; a server that starts costs none of it
STOP_DEADLINE_SECS = 120.0
_URL = re.compile(r"https?://[^\s]+:\d+")


class ServerProcess:
    """`headrace serve` as its own process; use it as a context manager.

    `env` overrides settings (`DS_...`); no setting of the caller's own environment leaks in.
    `module` may be another that takes the same command line, `launcher` a command that starts the
    one behind it in its place.
    """

    module = "headrace.cli"
    launcher: Sequence[str] = ()

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        cwd: str | None = None,
    ) -> None:
        self._env = {k: v for k, v in os.environ.items() if not is_setting(k)} | dict(env or {})
        self._args = list(args)
        self._cwd = cwd
        self.url = ""
        self.log: list[str] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        server = [sys.executable, "-m", self.module, "serve", "--port", "0", *self._args]
        command = [*self.launcher, *server]
        self._process = subprocess.Popen(
            command, env=self._env, cwd=self._cwd, stderr=subprocess.PIPE, text=True
        )
        listening = threading.Event()
        self._reader = threading.Thread(target=self._read_log, args=(listening,), daemon=True)
        self._reader.start()
        if not listening.wait(START_DEADLINE_SECS) or not self.url:
            self.kill()
            raise RuntimeError("the server did not start:\n" + "".join(self.log))

    def _read_log(self, listening: threading.Event) -> None:
        assert self._process.stderr is not None, "stderr is a pipe"
        with self._process.stderr as stderr:
            for line in stderr:
                self.log.append(line)
                found = _URL.search(line)
                if found and not self.url:
                    self.url = found[0]
                    listening.set()
        listening.set()

    def stop(self) -> int:
        """SIGTERM and wait; the exit code."""
        self._process.terminate()
        return self.wait()

    def kill(self) -> int:
        """SIGKILL and wait."""
        self._process.kill()
        return self.wait()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        try:
            code = self._process.wait(STOP_DEADLINE_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
            raise RuntimeError("the server did not stop in time") from None
        finally:
            self._reader.join(STOP_DEADLINE_SECS)
        return code


def is_setting(name: str) -> bool:
    return name == "RUST_LOG" or (name.startswith("DS_") and "__" in name)
