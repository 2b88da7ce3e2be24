"""A standalone Spark cluster on this machine: a master and workers, each a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pyspark

from headrace.spark.runtime import jvm_cds
from headrace.spark.session import LOOPBACK, prepare_environment
from headrace.testing.waiting import eventually

WORKERS = 2
_DEADLINE_SECS = 240.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile("Successfully registered with master")
# C1 only, and a heap of a fixed size: processes that live for seconds start sooner.
_DAEMON_JAVA = jvm_cds.added_to("-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# What a driver needs on a cluster this small. Each query takes a core while it has work, so there
# must be more cores than queries; that there are fewer in the machine does not matter.
CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": _DAEMON_JAVA,
    "spark.driver.extraJavaOptions": jvm_cds.added_to("-XX:TieredStopAtLevel=1"),
    # Begin with the first executor; by default a session waits up to 30 seconds for all of them.
    "spark.scheduler.minRegisteredResourcesRatio": "0",
    # Executors may take long to call back on a busy machine.
    "spark.network.timeout": "240s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "240000",
}
_CORES, _MEMORY = "2", "600m"

# Spark gives a new Python process ten seconds, not to be changed, and fails the query after that.
# On a machine with too much to do that is short; who supervises a pipeline starts it again.
TOO_BUSY = ("Python worker failed to connect back", "Timed out while waiting for the Python worker")
STARTS_MAX = 8


def is_too_busy(log: str) -> bool:
    return any(phrase in log for phrase in TOO_BUSY)


class Daemon:
    """A master or a worker, with everything it starts in one process group."""

    def __init__(self, home: Path, name: str, kind: str, *arguments: str) -> None:
        self._log = home / f"{name}.log"
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class")]
        command += [f"org.apache.spark.deploy.{kind}", "--host", LOOPBACK]
        command += ["--port", "0", "--webui-port", "0", *arguments]
        settings = {"SPARK_DAEMON_MEMORY": "128m", "SPARK_DAEMON_JAVA_OPTS": _DAEMON_JAVA}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | settings,
                start_new_session=True,
            )

    def await_line(self, pattern: re.Pattern[str]) -> re.Match[str]:
        def look() -> re.Match[str] | None:
            text = self._log.read_text("utf-8", "replace")
            assert self._process.poll() is None, text
            return pattern.search(text)

        eventually(
            lambda: look() is not None, f"{self._log.stem}: {pattern.pattern}", _DEADLINE_SECS
        )
        found = look()
        assert found is not None
        return found

    def kill(self) -> None:
        """kill -9 of it and of its executors, as of a machine that is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Cluster:
    """Use it as a context manager; `url` is the master's."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._started = 0
        self._daemons: list[Daemon] = []
        self.url = ""

    def __enter__(self) -> Cluster:
        prepare_environment()
        self._home.mkdir(parents=True, exist_ok=True)
        try:
            self._master = Daemon(self._home, "master", "master.Master")
            self._daemons.append(self._master)
            self.url = self._master.await_line(_MASTER)[1]
            self._workers = [self._add_worker() for _ in range(WORKERS)]
            for worker in self._workers:
                worker.await_line(_REGISTERED)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for daemon in reversed(self._daemons):
            daemon.kill()

    def kill_worker(self, number: int) -> None:
        """Kill a worker with its executors, and start another in its place."""
        self._workers[number].kill()
        self._workers[number] = self._add_worker()
        self._workers[number].await_line(_REGISTERED)

    def _add_worker(self) -> Daemon:
        self._started += 1
        size = ["--cores", _CORES, "--memory", _MEMORY, "--work-dir", str(self._home / "work")]
        worker = Daemon(self._home, f"worker-{self._started}", "worker.Worker", *size, self.url)
        self._daemons.append(worker)
        return worker
