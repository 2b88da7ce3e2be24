"""`headrace stack` as people use it: up, status, logs, down, Ctrl-C and kill -9."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from headrace.testing.stack_process import StackProcess
from headrace.testing.waiting import eventually
from tests.stack.helpers import assert_nothing_is_left, everything

pytestmark = pytest.mark.slow


def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_status_says_what_runs_where(stack: StackProcess) -> None:
    state = str(stack.state.path)
    done = headrace("stack", "status", "--json", "--state", state)
    assert done.returncode == 0, done.stdout + done.stderr
    services = {service["name"]: service for service in json.loads(done.stdout)["parts"]}
    assert list(services) == ["server", "envoy"]
    assert all(service["health"] == "ok" for service in services.values())
    table = headrace("stack", "status", "--state", state).stdout
    assert services["server"]["address"] in table
    assert services["envoy"]["address"] in table
    assert services["envoy"]["address"] in stack.output(), "and up printed the same table"


def test_each_part_has_a_log(stack: StackProcess) -> None:
    state = str(stack.state.path)
    done = headrace("stack", "logs", "server", "--state", state)
    assert "listening" in done.stdout
    assert "server | " in headrace("stack", "logs", "--state", state).stdout
    refused = headrace("stack", "logs", "nothing", "--state", state)
    assert refused.returncode == 2
    assert "No service is called nothing" in refused.stderr


def test_a_second_stack_in_the_same_directory_is_refused(stack: StackProcess) -> None:
    done = headrace("stack", "up", "--state", str(stack.state.path))
    assert done.returncode == 1
    assert "already up" in done.stderr
    assert httpx.get(f"{stack.address('envoy')}/healthz").status_code == 200


def test_the_stack_survives_the_death_of_its_parts_and_of_its_supervisor(tmp_path: Path) -> None:
    """Ports move, killed services come back, the next `up` cleans up, Ctrl-C leaves nothing."""
    stream = "/v1/stream/kept"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        ports = ["--port", f"envoy={number}", "--port=server=0", "--port=envoy-stats=0"]
        first = StackProcess(tmp_path / "state", "default", *ports)
        with first:
            assert f"Port {number} is taken: envoy listens on" in first.output()
            httpx.put(first.address("server") + stream, content="kept").raise_for_status()
            for service in ("server", "envoy"):
                assert_comes_back(first, service)
            _, *left = everything(first)[0]
            first.send(signal.SIGKILL)
            first.wait()
            assert all(identity.is_alive for identity in left)
    with StackProcess(tmp_path / "state") as second:
        assert not any(identity.is_alive for identity in left)
        assert "had left running: envoy, server" in second.output()
        assert httpx.get(second.address("server") + stream).text == "kept"
        identities, given = everything(second)
        assert second.stop(signal.SIGINT) == 0, second.output()
        assert_nothing_is_left(identities, given)


def assert_comes_back(stack: StackProcess, service: str) -> None:
    before, address = stack.pid(service), stack.address(service)
    assert stack.kill_service(service)
    eventually(lambda: stack.pid(service) not in (None, before), f"{service} runs again")
    eventually(lambda: answers(address + "/healthz"), f"{service} answers where it was")


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def test_down_ends_what_a_killed_supervisor_left(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    up = headrace("stack", "up", "--detach", "--free-ports", "--state", state)
    assert up.returncode == 0, up.stderr
    stack = StackProcess(tmp_path / "state")
    identities, ports = everything(stack)
    assert stack.address("envoy") in up.stdout
    os.kill(stack.record.supervisor.pid, signal.SIGKILL)
    status = headrace("stack", "status", "--state", state)
    assert (status.returncode, "The supervisor is not running" in status.stderr) == (1, True)
    assert "Ended server, envoy." in headrace("stack", "down", "--state", state).stderr
    assert_nothing_is_left(identities, ports)
    assert headrace("stack", "status", "--state", state).returncode == 3
    assert "Nothing was running." in headrace("stack", "down", "--state", state).stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--profile", "nonsense"], "There is no profile 'nonsense'"),
        (["--port", "nonsense=1"], "is not NAME=PORT"),
        (["--port", "server=x"], "is not NAME=PORT"),
        (["--port", "server=70000"], "at most 65535"),
    ],
)
def test_a_bad_request_is_refused_in_a_sentence(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = headrace("stack", "up", "--state", str(tmp_path / "s"), *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_a_bad_setting_of_the_server_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS_LIMITS__MAX_BODY_BYTES", "many")
    done = headrace("stack", "up", "--free-ports", "--state", str(tmp_path / "s"))
    assert done.returncode == 2
    assert "limits.max_body_bytes" in done.stderr


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("dev", "headrace stack up --profile dev"),
        ("dev-ui", "headrace stack ui"),
        ("dev-down", "headrace stack down"),
        ("integration-test", 'pytest tests/stack -m "not sync"'),
        ("integration-test-sessions", "pytest tests/stack -m sync"),
        ("docker", "docker build --target server"),
    ],
)
def test_make_has_the_reference_s_targets(target: str, command: str) -> None:
    """Without running them: every command of these is tested by itself."""
    root = Path(__file__).resolve().parents[2]
    asked = ["make", "--dry-run", "--no-print-directory", target]
    done = subprocess.run(asked, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert command in done.stdout
