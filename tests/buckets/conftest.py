"""One server per storage mode for the tests of buckets, and servers that can be restarted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS
from tests.buckets.api import MODES, Mortal
from tests.conftest import stop_cleanly
from tests.durability.modes import settings

_numbers = count()


@pytest.fixture(scope="session", params=MODES)
def modal(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server in each mode, for every test that needs no settings of its own."""
    directory = tmp_path_factory.mktemp(request.param)
    env = settings(request.param, directory / "data")
    env["DS_SERVER__LONG_POLL_TIMEOUT_SECS"] = "0.5"
    process = ServerProcess(env, cwd=str(directory))
    process.start()
    yield process
    stop_cleanly(process)


@pytest.fixture(scope="session")
def api(modal: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=modal.url, timeout=DEADLINE_SECS) as client:
        yield client


@pytest.fixture
def bucket(api: httpx.Client) -> str:
    """The path of a bucket that no other test uses."""
    path = f"/bucket-{next(_numbers)}"
    assert api.put(path).status_code == 201
    return path


@pytest.fixture(params=[mode for mode in MODES if mode != "memory"])
def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mortal]:
    """A server in each durable mode that can be killed and started again."""
    with Mortal(request.param, tmp_path) as server:
        yield server
