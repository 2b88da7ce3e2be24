"""A real local stack in a directory of its own, on free ports, for black-box tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from headrace.stack.processes import send
from headrace.stack.state_directory import StackRecord, StateDirectory
from headrace.stack.tokens import SUBJECT, TokenKeys, TokenKind
from headrace.testing.server_process import is_setting
from headrace.testing.waiting import eventually

START_SECS = 300.0
STOP_SECS = 60.0
_STACK_VARIABLES = ("POSTGRES_URL", "DS_SERVER_URL", "ELECTRIC_URL", "HEADRACE_STATE_DIR")


class StackProcess:
    """`headrace stack up` as its own process; use it as a context manager."""

    def __init__(
        self,
        directory: Path,
        profile: str = "default",
        *arguments: str,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.state = StateDirectory(directory)
        self.keys = TokenKeys(self.state.path)
        self._arguments = ["--profile", profile, "--state", str(directory), *arguments]
        if "--port" not in arguments:
            self._arguments.append("--free-ports")
        kept = {
            name: value
            for name, value in os.environ.items()
            if not is_setting(name) and name not in _STACK_VARIABLES
        }
        self._env = {**kept, **(env or {})}

    def start(self) -> None:
        self.launch()
        eventually(self._is_up_or_gone, "the stack is up", START_SECS)
        assert self._process.poll() is None, self.output()

    def launch(self) -> None:
        """Start, and do not wait."""
        self.state.create()
        command = [sys.executable, "-m", "headrace.cli", "stack", "up", *self._arguments]
        with self.state.log("supervisor").open("ab") as log:
            self._process = subprocess.Popen(command, env=self._env, stdout=log, stderr=log)

    def _is_up_or_gone(self) -> bool:
        if self._process.poll() is not None:
            return True
        record = self.state.read()
        return record is not None and record.ready and record.supervisor.pid == self._process.pid

    def output(self) -> str:
        """What the supervisor printed."""
        return self.state.log("supervisor").read_text("utf-8")

    @property
    def record(self) -> StackRecord:
        record = self.state.read()
        assert record is not None, "the stack is up"
        return record

    def address(self, service: str) -> str:
        return next(p.address for p in self.record.services if p.name == service)

    def pid(self, service: str) -> int | None:
        return next(p.pid for p in self.record.services if p.name == service)

    def kill_service(self, service: str) -> bool:
        """kill -9 of one service's own process; False if it does not run just now."""
        identity = next(p.identity for p in self.record.services if p.name == service)
        if identity is None or not identity.is_alive:
            return False
        send([identity], signal.SIGKILL)
        return True

    def token(self, kind: TokenKind = TokenKind.VALID, subject: str = SUBJECT) -> str:
        return self.keys.mint(kind, subject)

    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token()}"}

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGINT) -> int:
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        return self._process.wait(STOP_SECS)

    def __enter__(self) -> StackProcess:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
