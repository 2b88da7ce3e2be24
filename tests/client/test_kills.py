"""Producers and followers while the server is killed and started again: every message once."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from headrace.client import Client, Live, Retry, Stream
from headrace.testing.ports import free_port
from headrace.testing.server import ServerProcess

PATIENT = Retry(retries_max=None, delay_ms=20, delay_max_ms=300)
CAMPAIGN_SECS = float(os.environ.get("HEADRACE_KILL_SECS", "30"))
PRODUCERS = 2
MESSAGE_SECS = 0.002

pytestmark = pytest.mark.slow


class Server:
    """A durable server that comes back on the same port."""

    def __init__(self, directory: Path) -> None:
        self._env = {
            "DS_STORAGE__MODE": "file-durable",
            "DS_STORAGE__DATA_DIR": str(directory / "data"),
            "DS_LIMITS__MAX_STREAM_BYTES": str(2**30),
        }
        self._args = ["--port", str(free_port())]
        self.start()

    def start(self) -> None:
        self.process = ServerProcess(self._env, self._args)
        self.process.start()


class Producing(threading.Thread):
    """Appends its numbers until told to stop, then flushes."""

    def __init__(self, stream: Stream, name: str, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._stream = stream
        self._stop_now = stop
        self.count = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with self._stream.producer(self.name, batch_items_max=20) as producer:
                while not self._stop_now.wait(MESSAGE_SECS):
                    producer.append_json([self.name, self.count])
                    self.count += 1
        except BaseException as failure:
            self.failure = failure


class Following(threading.Thread):
    def __init__(self, stream: Stream, live: Live) -> None:
        super().__init__(name=str(live), daemon=True)
        self._reader = stream.read(live=live)
        self.values: list[list[object]] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.values.extend(self._reader.json())
        except BaseException as failure:
            self.failure = failure


def test_every_message_once_and_in_order_through_random_kills(tmp_path: Path) -> None:
    server = Server(tmp_path)
    stop = threading.Event()
    with Client(server.process.url, retry=PATIENT) as client:
        stream = client.stream("kills")
        stream.create("application/json")
        followers = [Following(stream, live) for live in ("auto", "sse", "long-poll")]
        producers = [Producing(stream, f"p{number}", stop) for number in range(PRODUCERS)]
        for thread in (*followers, *producers):
            thread.start()
        kills = 0
        deadline = time.monotonic() + CAMPAIGN_SECS
        while time.monotonic() < deadline:
            stop.wait(random.uniform(0.2, 1.5))
            server.process.kill()
            server.start()
            kills += 1
        stop.set()
        for producer in producers:
            producer.join(60)
            assert producer.failure is None, producer.failure
            assert not producer.is_alive()
        stream.close()
        written = {producer.name: list(range(producer.count)) for producer in producers}
        for follower in followers:
            follower.join(60)
            assert follower.failure is None, follower.failure
            assert not follower.is_alive(), f"{follower.name} did not see the end"
            assert _by_producer(follower.values) == written, follower.name
        assert _by_producer(stream.read_json()) == written
        assert kills > 0
        assert all(producer.count > 0 for producer in producers)
    assert server.process.stop() == 0


def _by_producer(values: list[list[object]]) -> dict[object, list[object]]:
    found: dict[object, list[object]] = {}
    for name, number in values:
        found.setdefault(name, []).append(number)
    return found
