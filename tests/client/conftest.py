"""What tests of the client share: both clients, and streams of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.client import Client, Retry, Stream
from headrace.testing.server_process import ServerProcess
from tests.client.awaited import awaited_client

QUICK = Retry(retries_max=3, delay_ms=1, delay_max_ms=5)

Connect = Callable[..., Client]


@pytest.fixture(params=["blocking", "awaited"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """Makes a client of either kind; both are used alike."""
    make = Client if request.param == "blocking" else awaited_client

    def connect(url: str, **settings: Any) -> Client:
        return make(url, **{"retry": QUICK, **settings})

    return connect


@pytest.fixture
def client(server: ServerProcess, connect: Connect) -> Iterator[Client]:
    with connect(server.url) as client:
        yield client


@pytest.fixture
def fresh(client: Client, stream: str) -> Stream:
    """A stream that no other test uses; not created yet."""
    return client.stream(stream)
