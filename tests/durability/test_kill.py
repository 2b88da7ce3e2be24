"""kill -9 under load loses nothing that was acknowledged, and invents nothing."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import httpx
import pytest

from headrace.testing.oracle import Oracle
from headrace.testing.server import ServerProcess
from headrace.testing.writers import Writer

pytestmark = pytest.mark.slow

PATH = "/v1/stream/under-fire"
CYCLES = 8
WRITERS = 8


def read_all(url: str) -> list[str]:
    text = b""
    offset = "-1"
    with httpx.Client(base_url=url, timeout=30) as client:
        while True:
            response = client.get(PATH, params={"offset": offset})
            assert response.status_code == 200, response.text
            text += response.content
            offset = response.headers["stream-next-offset"]
            if "stream-up-to-date" in response.headers:
                return text.decode().splitlines()


def test_every_acknowledged_append_survives_kill_9(tmp_path: Path) -> None:
    env = {"DS_STORAGE__MODE": "acid", "DS_STORAGE__DATA_DIR": str(tmp_path / "data")}
    oracle = Oracle()
    numbers = dict.fromkeys((f"w{n}" for n in range(WRITERS)), 0)
    moments = random.Random(1)
    for cycle in range(CYCLES):
        server = ServerProcess(env, cwd=str(tmp_path))
        server.start()
        if cycle == 0:
            httpx.put(server.url + PATH, headers={"content-type": "text/plain"})
        writers = [
            Writer(server.port, PATH, name, first, oracle) for name, first in numbers.items()
        ]
        for writer in writers:
            writer.start()
        killer = threading.Timer(moments.uniform(0.02, 0.25), server.kill)
        killer.start()
        killer.join()
        for writer in writers:
            writer.join(30)
            numbers[writer.name] = writer.number
    with ServerProcess(env, cwd=str(tmp_path)) as server:
        stored = read_all(server.url)
    assert len(oracle.acknowledged) > CYCLES, "the test must have written something"
    assert oracle.violations(stored) == []
