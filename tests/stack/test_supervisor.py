"""The supervisor with services made for the test: order, restarts, and leaving nothing behind."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.stack import processes
from headrace.stack.cleanup import end_recorded
from headrace.stack.ports import Ports
from headrace.stack.services import HealthProbe, Service
from headrace.stack.state_directory import Recorded, StackRecord, StateDirectory
from headrace.stack.supervisor import StackFailed, Supervisor
from headrace.testing.waiting import eventually

SLEEP = "import time; time.sleep(600)"


def python(code: str, name: str, *needs: str, oneshot: bool = False, **env: str) -> Service:
    return Service(name, (sys.executable, "-c", code), env=env, needs=needs, oneshot=oneshot)


class Run:
    """A supervisor on a thread of its own."""

    def __init__(self, directory: Path, services: list[Service]) -> None:
        self.state = StateDirectory(directory)
        self.state.create()
        self.said: list[str] = []
        self.ready = threading.Event()
        self.error: BaseException | None = None
        self.supervisor = Supervisor(services, "test", self.state, "mark", self.said.append)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.supervisor.run(lambda record: self.ready.set())
        except StackFailed as error:
            self.error = error

    def pid(self, name: str) -> int | None:
        record = self.state.read()
        services = record.services if record else []
        return next((service.pid for service in services if service.name == name), None)

    def stop(self) -> None:
        self.supervisor.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        run.stop()


def test_parts_start_after_what_they_need(tmp_path: Path, runs: list[Run]) -> None:
    say = "import os, sys; open(os.environ['OUT'], 'a').write(sys.argv[0] + '{}\\n')"
    out = str(tmp_path / "order")
    services = [
        python(say.format("third"), "third", "second", oneshot=True, OUT=out),
        python(say.format("second"), "second", "first", oneshot=True, OUT=out),
        python(say.format("first"), "first", oneshot=True, OUT=out),
    ]
    runs.append(Run(tmp_path / "state", services))
    assert runs[0].ready.wait(30)
    order = Path(out).read_text().replace("-c", "").split()
    assert order == ["first", "second", "third"]


def test_a_part_that_is_killed_starts_again(tmp_path: Path, runs: list[Run]) -> None:
    runs.append(Run(tmp_path / "state", [python(SLEEP, "sleeper")]))
    run = runs[0]
    assert run.ready.wait(30)
    first = run.pid("sleeper")
    assert first is not None
    os.kill(first, 9)
    eventually(lambda: run.pid("sleeper") not in (None, first), "another process runs")
    assert "sleeper ended (signal 9); starting it again in 0.25 s" in run.said


def test_what_a_part_started_ends_with_it_even_in_a_session_of_its_own(
    tmp_path: Path, runs: list[Run]
) -> None:
    code = f"""
import subprocess, sys, os
for own in (False, True):
    child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=own)
    open(os.environ["OUT"], "a").write(f"{{child.pid}}\\n")
{SLEEP}
"""
    out = tmp_path / "children"
    runs.append(Run(tmp_path / "state", [python(code, "parent", OUT=str(out))]))
    eventually(lambda: out.exists() and out.read_text().count("\n") == 2, "both children run")
    children = [processes.identity_of(int(pid)) for pid in out.read_text().split()]
    assert None not in children
    runs[0].stop()
    eventually(lambda: not any(c and c.is_alive for c in children), "the children are gone")
    assert runs[0].state.read() is None


@pytest.mark.slow
def test_a_part_that_never_comes_up_fails_the_stack_with_its_last_words(
    tmp_path: Path, runs: list[Run]
) -> None:
    # Without something to ask, a service is up as soon as it runs.
    health = HealthProbe("tcp", f"127.0.0.1:{Ports(any_free=True).give('server')}")
    command = (sys.executable, "-c", "raise SystemExit('no such thing')")
    run = Run(tmp_path / "state", [Service("broken", command, health=health)])
    runs.append(run)
    run.thread.join(30)
    assert run.error is not None
    assert "broken does not start (exit code 1)" in str(run.error)
    assert "no such thing" in str(run.error)


def test_a_part_is_up_when_it_answers_not_when_it_runs(tmp_path: Path, runs: list[Run]) -> None:
    port = Ports(any_free=True).give("server")
    gate = tmp_path / "gate"
    code = f"""
import http.server, pathlib, time
while not pathlib.Path({str(gate)!r}).exists():
    time.sleep(0.02)
http.server.test(http.server.SimpleHTTPRequestHandler, port={port}, bind="127.0.0.1")
"""
    service = Service(
        "page",
        (sys.executable, "-c", code),
        health=HealthProbe("http", f"http://127.0.0.1:{port}/"),
    )
    runs.append(Run(tmp_path / "state", [service]))
    eventually(lambda: runs[0].pid("page") is not None, "it runs")
    assert not runs[0].ready.wait(0.5)
    gate.touch()
    assert runs[0].ready.wait(30)


def test_what_an_earlier_run_reported_says_nothing_about_the_next(
    tmp_path: Path, runs: list[Run]
) -> None:
    """Seen under kill -9: a pipeline passed for running on the word of the one before it, and was
    started again and again because it took its time to say so itself."""
    report = tmp_path / "progress.json"
    report.write_text(json.dumps({"state": "running", "last_error": None, "updated_at": 9e9}))
    service = Service(
        "quiet",
        (sys.executable, "-c", SLEEP),
        health=HealthProbe("pipelines", str(report)),
        reports=(report,),
    )
    runs.append(Run(tmp_path / "state", [service]))
    eventually(lambda: runs[0].pid("quiet") is not None, "it runs")
    assert not runs[0].ready.wait(0.5)
    report.write_text(json.dumps({"state": "running", "last_error": None, "updated_at": 9e9}))
    assert runs[0].ready.wait(30)


# --- what is left over ---


def test_a_pid_that_another_process_has_now_is_left_alone(tmp_path: Path) -> None:
    """The record of a dead stack names pids; only pid and start time together mean a process."""
    state = StateDirectory(tmp_path)
    state.create()
    alive = processes.identity_of(os.getpid())
    assert alive is not None
    other = processes.Identity(alive.pid, alive.started + "0")
    record = StackRecord("default", "nobody-carries-this-mark", other)
    record.services = [Recorded("server", "running", pid=other.pid, started=other.started)]
    state.write(record)
    assert end_recorded(state, record) == []
    assert state.read() is None


def test_the_record_survives_writing_and_reading(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    state.create()
    record = StackRecord(
        "dev", "m", processes.Identity(1, "a"), services=[Recorded("x", address="y")]
    )
    state.write(record)
    assert state.read() == record


def test_one_directory_has_one_supervisor(tmp_path: Path) -> None:
    first, second = StateDirectory(tmp_path), StateDirectory(tmp_path)
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()
