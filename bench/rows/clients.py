"""The clients beside each other: how many messages a second each writes and reads, on one server.

Ours runs in the generator process, the official TypeScript client in a Node process that it
starts; both warm up, then time themselves from the first message to the last answer. Both make
batches of up to 1 MiB without waiting for more, and keep five of them in flight.
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
MESSAGES_PER_SECOND_OF_BUDGET = 50_000
PAYLOAD = "x" * 230  # with its frame, a JSON message of 256 bytes
TIMEOUT_S = 240.0
RATE = Metric("messages_s", "messages/s", higher_is_better=True)
CLIENT_CPU = Metric("client_cpu_us", "client CPU µs per message", higher_is_better=False)


@dataclass(frozen=True, slots=True)
class Took:
    seconds: float
    cpu_seconds: float


class Timed:
    def __enter__(self) -> Timed:
        self._began, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        cpu_seconds = time.process_time() - self._cpu
        self.took = Took(time.perf_counter() - self._began, cpu_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow(Row):
    """Write a stream with an idempotent producer, or read it as JSON."""

    writes: bool
    language: str

    def run(self, target: Target, budget: Budget) -> Sample:
        url = f"http://{LOOPBACK}:{target.port}"
        count = int(budget.seconds * MESSAGES_PER_SECOND_OF_BUDGET)
        if not self.writes:
            produce(url, "measured", count)
        meter = Meter(target.pid)
        took = self._measured(url, count)
        figures = {
            "messages_s": count / took.seconds,
            "client_cpu_us": took.cpu_seconds / count * 1e6,
        }
        return meter.stop(count, 0, **figures)

    def _measured(self, url: str, count: int) -> Took:
        if self.language == "typescript":
            return typescript("produce" if self.writes else "read", url, "measured", count)
        few = -(-count // 10)
        produce(url, "measured-warm-up", few)
        if self.writes:
            return produce(url, "measured", count)
        read(url, "measured-warm-up", few)
        return read(url, "measured", count)


def produce(url: str, name: str, count: int) -> Took:
    with Client(url) as client:
        stream = client.stream(name)
        stream.create("application/json")
        with Timed() as timed, stream.producer("bench", linger_ms=0) as producer:
            for number in range(count):
                producer.append_json({"n": number, "payload": PAYLOAD})
    return timed.took


def read(url: str, name: str, count: int) -> Took:
    with Client(url) as client:
        with Timed() as timed:
            found = len(client.stream(name).read_json())
        assert found == count, f"{found} messages of {count}"
    return timed.took


def typescript(verb: str, url: str, name: str, count: int) -> Took:
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
    return Took(**json.loads(done.stdout))


CLIENTS: list[Row] = [
    ClientRow(
        name=f"client-{'produce' if writes else 'read'}-{language}",
        unit="message",
        metrics=(RATE, CLIENT_CPU),
        servers=("headrace",),
        writes=writes,
        language=language,
    )
    for writes in (True, False)
    for language in ("python", "typescript")
]
