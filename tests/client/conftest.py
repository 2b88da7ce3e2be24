"""What tests of the client share: clients of the shared server, streams of one's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.client import Client, Retry, Stream
from headrace.testing.server import ServerProcess


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url, retry=QUICK) as client:
        yield client


@pytest.fixture
def fresh(client: Client, stream: str) -> Stream:
    """A stream that no other test uses; not created yet."""
    return client.stream(stream)


QUICK = Retry(retries_max=3, delay_ms=1, delay_max_ms=5)
