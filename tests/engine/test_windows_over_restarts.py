"""Sliding windows go on over a restart: they run while the server runs, and reads count."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.engine.engine import Engine
from headrace.engine.renewals import ROUND_MS
from headrace.protocol.expiry import Lifetime
from headrace.protocol.requests import Create
from headrace.storage.base import ignore
from headrace.testing.clock import VirtualClock
from tests.durability.modes import DURABLE_MODES, open_storage
from tests.engine.helpers import TEXT, Recorder

HOUR = 3600
SLIDING = Create(content_type=TEXT, lifetime=Lifetime(ttl_secs=HOUR))


class Server:
    """An engine on a data directory, under a virtual clock."""

    def __init__(self, mode: str, directory: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._mode = mode
        self._directory = directory
        self._loop = loop
        self.clock = VirtualClock()
        self.open()

    def open(self) -> None:
        self._storage = open_storage(self._mode, self._directory, self._loop)
        self.engine = Engine(self._storage, self.clock)

    def settle(self) -> None:
        done = asyncio.Event()
        self._storage.settle_documents(done.set, ignore)
        self._loop.run_until_complete(asyncio.wait_for(done.wait(), 30))

    def create(self, name: str) -> None:
        self.engine.create(name, SLIDING, lambda _: None)
        self.settle()

    def run(self, secs: int) -> None:
        """Serve for a while, with as many ticks as rounds need."""
        for _ in range(secs * 1000 // ROUND_MS):
            self.clock.advance(ms=ROUND_MS)
            self.engine.sweep()
            self.settle()

    def read(self, name: str) -> None:
        self.engine.touch(self.engine.find(name))

    def stop(self) -> None:
        self.engine.close()

    def crash(self) -> None:
        """Stop without what an orderly stop writes down."""
        self._storage.close()

    @property
    def names(self) -> set[str]:
        self.engine.sweep()
        return set(self.engine.streams) - {"__registry__"}


@pytest.fixture(params=DURABLE_MODES)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    loop = asyncio.new_event_loop()
    server = Server(request.param, tmp_path, loop)
    yield server
    server.stop()
    loop.close()


def test_restarts_do_not_keep_a_stream_that_nobody_uses(server: Server) -> None:
    server.create("a")
    for _ in range(3):
        server.run(HOUR // 4)
        server.stop()
        server.open()
    assert server.names == {"a"}
    server.run(HOUR // 4)
    assert server.names == set()


def test_time_in_which_nobody_served_does_not_count(server: Server) -> None:
    server.create("a")
    server.run(HOUR // 2)
    server.stop()
    server.clock.advance(secs=24 * HOUR)
    server.open()
    server.run(HOUR // 2 - ROUND_MS // 1000)
    assert server.names == {"a"}
    server.run(ROUND_MS // 1000)
    assert server.names == set()


def test_an_orderly_stop_forgets_no_read(server: Server) -> None:
    server.create("a")
    server.run(HOUR // 2)
    server.clock.advance(ms=ROUND_MS // 2)
    server.read("a")
    server.stop()
    server.open()
    server.run(HOUR - ROUND_MS // 1000)
    assert server.names == {"a"}


def test_a_crash_forgets_the_reads_of_one_round_at_most(server: Server) -> None:
    server.create("early")
    server.create("late")
    server.run(HOUR // 2)
    server.read("early")
    server.run(ROUND_MS // 1000)
    server.read("late")
    server.crash()
    server.open()
    server.run(HOUR // 2)
    assert server.names == {"early"}


def test_a_write_is_never_forgotten(server: Server) -> None:
    server.create("a")
    server.run(HOUR // 2)
    server.clock.advance(ms=ROUND_MS - 1)
    server.create("b")
    server.crash()
    server.open()
    server.run(HOUR - ROUND_MS // 1000)
    assert server.names == {"b"}


def test_a_reader_that_followed_until_the_crash_counts(server: Server) -> None:
    server.create("a")
    Recorder(server.engine, "a")
    server.run(HOUR // 2)
    server.crash()
    server.open()
    server.run(HOUR - ROUND_MS // 1000)
    assert server.names == {"a"}


def test_what_was_written_of_a_stream_goes_with_it(server: Server) -> None:
    server.create("a")
    server.run(10 * ROUND_MS // 1000)
    server.engine.delete("a", lambda _: None)
    server.run(2 * ROUND_MS // 1000)
    server.crash()
    server.open()
    assert set(server.engine.take_documents("renewals/")) == set()
    assert server.engine._renewals._written == {}
