"""One stack of the default profile for every test that does not break it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from headrace.testing.stack import StackProcess
from headrace.testing.waiting import DEADLINE_SECS


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
