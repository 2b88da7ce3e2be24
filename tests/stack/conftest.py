"""Two stacks, one of the profile default and one of dev, for every test that leaves them up."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.stack.lifecycle import down
from headrace.testing.stack_process import StackProcess
from headrace.testing.waiting import DEADLINE_SECS
from tests.stack.helpers import assert_nothing_is_left, everything


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackProcess]:
    with StackProcess(tmp_path_factory.mktemp("stack") / "state") as running:
        yield running


@pytest.fixture
def envoy(stack: StackProcess) -> Iterator[httpx.Client]:
    """A client of Envoy without a token."""
    with httpx.Client(base_url=stack.address("envoy"), timeout=DEADLINE_SECS) as client:
        yield client


@pytest.fixture
def signed(stack: StackProcess) -> Iterator[httpx.Client]:
    """A client of Envoy with a good token."""
    headers = stack.authorization()
    url = stack.address("envoy")
    with httpx.Client(base_url=url, timeout=DEADLINE_SECS, headers=headers) as client:
        yield client


@pytest.fixture(scope="session")
def dev() -> Iterator[StackProcess]:
    # Not pytest's directory: as root, Postgres runs as another account, which may not enter it.
    home = Path(tempfile.mkdtemp(prefix="headrace-stack-"))
    home.chmod(0o755)
    try:
        with StackProcess(home / "state", "dev") as running:
            yield running
            identities, ports = everything(running)
            down(running.state)
            assert_nothing_is_left(identities, ports)
    finally:
        shutil.rmtree(home)


@pytest.fixture
def postgres_url(dev: StackProcess) -> str:
    return dev.address("postgres").replace("postgres@", "postgres:password@")
