"""examples/webhook_worker.py handles each message, and trusts only its server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from headrace.client import Client
from headrace.testing.ports import free_port
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.examples.conftest import EXAMPLES

pytestmark = pytest.mark.slow


@contextmanager
def worker(server: ServerProcess, port: int, output: Path) -> Iterator[None]:
    command = [sys.executable, str(EXAMPLES / "webhook_worker.py"), "--url", server.url]
    with output.open("ab") as log:
        process = subprocess.Popen(
            [*command, "--pattern", "orders/*", "--port", str(port)], stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(DEADLINE_SECS)


def test_every_message_is_handled_in_order_also_those_of_a_pause(
    server: ServerProcess, tmp_path: Path
) -> None:
    port, output = free_port(), tmp_path / "output"

    def lines() -> list[str]:
        return [line for line in output.read_text().splitlines() if line.startswith("orders/")]

    with Client(server.url) as client:
        with worker(server, port, output):
            eventually(lambda: "waiting" in output.read_text(), "the worker listens")
            client.stream("orders/7").create()
            client.stream("orders/7").append_json({"sku": "a"}, {"sku": "b"})
            eventually(lambda: len(lines()) == 2, "both messages are handled")
            forged = httpx.post(f"http://127.0.0.1:{port}/wake", content=b"{}")
            assert forged.status_code == 401
        client.stream("orders/7").append_json({"sku": "c"})
        with worker(server, port, output):
            eventually(lambda: '{"sku": "c"}' in output.read_text(), "the wake is sent again")
        # Another port is another subscription, which the first one is in the way of.
        command = [sys.executable, str(EXAMPLES / "webhook_worker.py"), "--url", server.url]
        other = subprocess.run(
            [*command, "--port", str(free_port())], capture_output=True, text=True, check=False
        )
        assert "headrace subscribe delete order-worker" in other.stderr
        assert "Traceback" not in other.stderr
        client.subscription("order-worker").delete()
    assert lines() == [f'orders/7: {{"sku": "{sku}"}}' for sku in "abc"]
