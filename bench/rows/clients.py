"""The clients beside each other: how many messages a second each writes and reads, on one server.

Ours runs in the generator process, the official TypeScript client in a Node process that it
starts; both time themselves from the first message to the last answer.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from dataclasses import dataclass

from bench.machine import REPOSITORY
from bench.meter import Meter, Sample
from bench.rows.base import Budget, Metric, Row, Target
from bench.sockets import LOOPBACK
from headrace.client import Client

SCRIPT = REPOSITORY / "bench" / "reference" / "client.mjs"
MESSAGES_PER_SECOND_OF_BUDGET = 20_000
PAYLOAD = "x" * 230  # with its frame, a JSON message of 256 bytes
TIMEOUT_S = 240.0
RATE = Metric("messages_s", "messages/s", higher_is_better=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow(Row):
    """Write a stream with an idempotent producer, or read it as JSON."""

    writes: bool
    language: str

    def run(self, target: Target, budget: Budget) -> Sample:
        url = f"http://{LOOPBACK}:{target.port}"
        count = int(budget.seconds * MESSAGES_PER_SECOND_OF_BUDGET)
        self._once(url, "warm-up", count // 10)
        if not self.writes:
            produce(url, "measured", count)
        meter = Meter(target.pid)
        seconds = self._once(url, "measured", count)
        return meter.stop(count, 0, messages_s=count / seconds)

    def _once(self, url: str, stream: str, count: int) -> float:
        if self.language == "typescript":
            return typescript("produce" if self.writes else "read", url, stream, count)
        if self.writes:
            return produce(url, stream, count)
        if stream == "warm-up":
            produce(url, stream, count)
        return read(url, stream, count)


def produce(url: str, name: str, count: int) -> float:
    with Client(url) as client:
        stream = client.stream(name)
        stream.create("application/json")
        began = time.perf_counter()
        with stream.producer(linger_ms=0) as producer:
            for number in range(count):
                producer.append_json({"n": number, "payload": PAYLOAD})
        return time.perf_counter() - began


def read(url: str, name: str, count: int) -> float:
    with Client(url) as client:
        began = time.perf_counter()
        found = sum(1 for _ in client.stream(name).read().json())
        assert found == count, f"{found} messages of {count}"
        return time.perf_counter() - began


def typescript(verb: str, url: str, name: str, count: int) -> float:
    node = shutil.which("node")
    assert node is not None, "the TypeScript client needs Node 20"
    done = subprocess.run(
        [node, str(SCRIPT), verb, f"{url}/v1/stream/{name}", str(count), PAYLOAD],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seconds: float = json.loads(done.stdout)["seconds"]
    return seconds


CLIENTS: list[Row] = [
    ClientRow(
        name=f"client-{'produce' if writes else 'read'}-{language}",
        unit="message",
        metrics=(RATE,),
        servers=("headrace",),
        writes=writes,
        language=language,
    )
    for writes in (True, False)
    for language in ("python", "typescript")
]
