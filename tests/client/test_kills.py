"""Producers and followers while the server is killed and started again: every message once."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.client import AsyncClient, AsyncStream, Client, Live, Retry, Stream
from headrace.testing.ports import free_port
from headrace.testing.server_process import ServerProcess

PATIENT = Retry(retries_max=None, delay_ms=20, delay_max_ms=300)
CAMPAIGN_SECS = float(os.environ.get("HEADRACE_KILL_SECS", "30"))
JOIN_SECS = 120
MESSAGE_SECS = 0.002
LIVE: list[Live] = ["auto", "sse", "long-poll"]

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


class Writes:
    """What one producer appended: its own name and the numbers from 0 on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.failure: BaseException | None = None

    def message(self) -> list[object]:
        return [self.name, self.count]


class Reads:
    """What one follower saw until the stream was closed."""

    def __init__(self, live: Live, kind: str) -> None:
        self.live = live
        self.name = f"{kind} {live}"
        self.values: list[list[object]] = []
        self.failure: BaseException | None = None


def produce(stream: Stream, writes: Writes, stop: threading.Event) -> None:
    try:
        with stream.producer(writes.name, batch_items_max=20) as producer:
            while not stop.wait(MESSAGE_SECS):
                producer.append_json(writes.message())
                writes.count += 1
    except BaseException as failure:
        writes.failure = failure


def follow(stream: Stream, reads: Reads) -> None:
    try:
        reads.values.extend(stream.read(live=reads.live).json())
    except BaseException as failure:
        reads.failure = failure


async def produce_awaited(stream: AsyncStream, writes: Writes, stop: threading.Event) -> None:
    try:
        async with stream.producer(writes.name, batch_items_max=20) as producer:
            while not stop.is_set():
                await producer.append_json(writes.message())
                writes.count += 1
                await asyncio.sleep(MESSAGE_SECS)
    except BaseException as failure:
        writes.failure = failure


async def follow_awaited(stream: AsyncStream, reads: Reads) -> None:
    try:
        async for batch in stream.read(live=reads.live).batches():
            reads.values += batch.items
    except BaseException as failure:
        reads.failure = failure


class Campaign:
    """A producer and a follower of every mode, of either kind of client, on one stream."""

    def __init__(self, client: Client, stream: Stream) -> None:
        self.stop = threading.Event()
        self.writes = [Writes("blocking"), Writes("awaited")]
        self.reads = {
            kind: [Reads(live, kind) for live in LIVE] for kind in ("blocking", "awaited")
        }
        self._settings = client.settings
        self._url = stream.url
        self._written = threading.Event()
        blocking, awaited = self.writes
        self._producing = [
            _started(produce, stream, blocking, self.stop),
            _started(asyncio.run, self._awaited(awaited)),
        ]
        self._following = [_started(follow, stream, reads) for reads in self.reads["blocking"]]

    async def _awaited(self, writes: Writes) -> None:
        async with AsyncClient(settings=self._settings) as client:
            stream = client.stream(self._url)
            followers = [
                asyncio.create_task(follow_awaited(stream, reads))
                for reads in self.reads["awaited"]
            ]
            await produce_awaited(stream, writes, self.stop)
            self._written.set()
            await asyncio.gather(*followers)

    def finish(self, stream: Stream) -> dict[str, list[int]]:
        """Flush, close the stream and wait for everyone; what was written."""
        self.stop.set()
        self._producing[0].join(JOIN_SECS)
        assert self._written.wait(JOIN_SECS), "the awaited producer has flushed"
        for writes in self.writes:
            assert writes.failure is None, (writes.name, writes.failure)
        stream.close()
        for thread in (*self._producing, *self._following):
            thread.join(JOIN_SECS)
            assert not thread.is_alive(), "everyone sees the end of the stream"
        return {writes.name: list(range(writes.count)) for writes in self.writes}


def _started(work: Callable[..., object], *args: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, daemon=True)
    thread.start()
    return thread


def test_every_message_once_and_in_order_through_random_kills(tmp_path: Path) -> None:
    server = Server(tmp_path)
    with Client(server.process.url, retry=PATIENT) as client:
        stream = client.stream("kills")
        stream.create("application/json")
        campaign = Campaign(client, stream)
        kills = 0
        deadline = time.monotonic() + CAMPAIGN_SECS
        while time.monotonic() < deadline:
            campaign.stop.wait(random.uniform(0.2, 1.5))
            server.process.kill()
            server.start()
            kills += 1
        written = campaign.finish(stream)
        everything = stream.read_json()
        assert by_producer(everything) == written
        for reads in (*campaign.reads["blocking"], *campaign.reads["awaited"]):
            assert reads.failure is None, (reads.name, reads.failure)
            assert reads.values == everything, reads.name
        assert kills > 0
        assert all(written.values()), "both producers wrote"
    assert server.process.stop() == 0


def by_producer(values: list[list[object]]) -> dict[object, list[object]]:
    found: dict[object, list[object]] = {}
    for name, number in values:
        found.setdefault(name, []).append(number)
    return found
