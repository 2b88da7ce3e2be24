"""`headrace shapes` as a process, and the table the tests follow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from headrace.stack.health_check import check
from headrace.stack.ports import Ports
from headrace.stack.services import HealthProbe
from headrace.testing.waiting import DEADLINE_SECS, eventually

ITEMS = """
create table items (
    id serial primary key, title text not null, body text, amount numeric, done boolean,
    tags text[], meta jsonb
)
"""


class ShapesProcess:
    def __init__(self, database: str, server_url: str, log: Path, *arguments: str) -> None:
        self._env = {**os.environ, "POSTGRES_URL": database, "DS_SERVER_URL": server_url}
        port = Ports(any_free=True).give("shapes")
        # One slot per database: they share a Postgres.
        slot = "shapes_" + database.rpartition("/")[2]
        self._command = [sys.executable, "-m", "headrace.cli", "shapes", "--port", str(port)]
        self._command += ["--slot", slot, "--prefix", slot, *arguments]
        self.prefix = slot
        self._log = log
        self.url = f"http://127.0.0.1:{port}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=self._env, stdout=log, stderr=log)
        health = HealthProbe("http", f"{self.url}/v1/health")
        eventually(lambda: check(health) == "ok", "the shapes are served")

    def started_again(self) -> subprocess.Popen[str]:
        """A second process of the same command, its output in pipes."""
        return subprocess.Popen(
            self._command,
            env=self._env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Until `resume`, whatever happens around it."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def wait(self) -> int:
        """For its end; the exit code."""
        return self._process.wait(DEADLINE_SECS)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(DEADLINE_SECS)

    @property
    def log(self) -> str:
        return self._log.read_text()


class Follower:
    """A reader of one shape in plain HTTP, as the protocol says a client should be."""

    def __init__(self, url: str, table: str, **params: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=DEADLINE_SECS)
        self._params = {"table": table, **params}
        self.handle = ""
        self.offset = "-1"
        self.cursor = ""
        self.refetched = 0
        self.messages: list[dict[str, Any]] = []

    def ask(self, **more: str) -> httpx.Response:
        return self.http.get("/v1/shape", params=self.query(**more))

    def query(self, **more: str) -> dict[str, str]:
        params = {**self._params, "offset": self.offset}
        if self.handle:
            params["handle"] = self.handle
        return {**params, **more}

    def step(self, **more: str) -> list[dict[str, Any]]:
        """One request, and the changes in its answer."""
        answer = self.ask(**more)
        if answer.status_code == 409:
            self.refetched += 1
            self.handle, self.offset = answer.headers.get("electric-handle", ""), "-1"
            return []
        assert answer.status_code == 200, answer.text
        self.handle = answer.headers["electric-handle"]
        self.offset = answer.headers["electric-offset"]
        self.cursor = answer.headers.get("electric-cursor", "")
        found = [m for m in answer.json() if "operation" in m["headers"]]
        self.messages += found
        self.is_up_to_date = "electric-up-to-date" in answer.headers
        return found

    def catch_up(self) -> list[dict[str, Any]]:
        found = self.step()
        while not self.is_up_to_date:
            found += self.step()
        return found

    def live(self) -> list[dict[str, Any]]:
        return self.step(live="true", cursor=self.cursor)

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.http.close()
