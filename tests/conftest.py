"""What tests of the running server share: servers, a client, a stream name of one's own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS
from tests.postgres.fixtures import database, postgres
from tests.scheduling import Together

__all__ = ["database", "http", "postgres", "serve", "server", "stream"]

# No wall-clock assertions: a slow machine is not a failed property. A run under CI repeats the
# same examples, so that a change is judged by itself; every other run looks for new ones.
settings.register_profile(
    "headrace",
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("headrace")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together | None:
    return Together(config, log) if config.getoption("dist") == "loadgroup" else None


_faults: list[str] = []


class _Faults(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _faults.append(self.format(record))


logging.getLogger("headrace.faults").addHandler(_Faults())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A defect in a callback is caught where it belongs, and must not be lost on the test."""
    _faults.clear()
    result = yield
    if item.get_closest_marker("faults") is None:
        assert not _faults, "\n".join(_faults)
    return result


Serve = Callable[..., ServerProcess]
_numbers = count()


def stop_cleanly(server: ServerProcess) -> None:
    """Stop a server, and fail if any test made it log a fault of its own."""
    code = server.stop()
    faults = [line for line in server.log if "Traceback" in line or " critical " in line]
    assert not faults, "".join(server.log)
    assert code == 0, "".join(server.log)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for every test that needs no settings of its own.

    Long-polls end soon, and webhooks reach the receivers of tests, which are on this machine.
    """
    env = {"DS_SERVER__LONG_POLL_TIMEOUT_SECS": "0.5", "DS_WEBHOOKS__ALLOW_LOOPBACK": "true"}
    process = ServerProcess(env, cwd=str(tmp_path_factory.mktemp("server")))
    process.start()
    yield process
    stop_cleanly(process)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start servers with settings of their own: `serve(DS_LIMITS__MAX_BODY_BYTES="10")`."""
    processes: list[ServerProcess] = []

    def start(**env: str) -> ServerProcess:
        process = ServerProcess(env, cwd=str(tmp_path))
        process.start()
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.is_running:
            stop_cleanly(process)


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    """A client of the shared server."""
    with httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client:
        yield client


@pytest.fixture
def stream() -> str:
    """The path of a stream that no other test uses."""
    return f"/v1/stream/test/{next(_numbers)}"
