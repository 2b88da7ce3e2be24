"""A pytest plugin: servers to test against. Installed with the package, so fixtures just work.

    def test_my_writer(headrace_client):
        stream = headrace_client.stream("orders")
        stream.create("application/json")

- `headrace_server`: a server process of its own for the whole run, in memory, on a free port.
- `headrace_in_process`: the same server in a thread of the test process; starts in milliseconds.
- `headrace_client`: a blocking client of `headrace_server`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.client import Client
    from headrace.testing.in_process import InProcessServer
    from headrace.testing.server_process import ServerProcess

# The imports are inside: a run that uses none of these fixtures pays nothing for them.


@pytest.fixture(scope="session")
def headrace_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`headrace serve` as a process; `headrace_server.url` is where."""
    from headrace.testing.server_process import ServerProcess

    with ServerProcess(cwd=str(tmp_path_factory.mktemp("headrace"))) as server:
        yield server


@pytest.fixture
def headrace_in_process() -> Iterator[InProcessServer]:
    """A server in this process, empty for each test; `headrace_in_process.url` is where."""
    from headrace.testing.in_process import InProcessServer

    with InProcessServer() as server:
        yield server


@pytest.fixture
def headrace_client(headrace_server: ServerProcess) -> Iterator[Client]:
    """A client of `headrace_server`."""
    from headrace.client import Client

    with Client(headrace_server.url) as client:
        yield client
