"""Sliding windows go on over a restart: they run while the server runs, and reads count."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.engine.engine import Engine
from headrace.engine.ttl_renewals import OLD_PREFIX, PREFIX, ROUND_MS
from headrace.protocol.expiry import Lifetime
from headrace.protocol.requests import Append, Create
from headrace.storage.base import ignore
from headrace.testing.virtual_clock import VirtualClock
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
        self._storage.when_documents_durable(done.set, ignore)
        self._loop.run_until_complete(asyncio.wait_for(done.wait(), 30))

    def create(self, name: str) -> None:
        self.engine.create(name, SLIDING, lambda _: None)
        self.settle()

    def run(self, secs: int) -> None:
        """Serve for a while, with as many ticks as rounds need."""
        for _ in range(secs * 1000 // ROUND_MS):
            self.clock.advance(ms=ROUND_MS)
            self.engine.housekeeping.run()
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
        self.engine.housekeeping.run()
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
    assert set(server.engine.take_documents(PREFIX)) == set()
    assert server.engine._renewals._written == {}


# -- a wall clock that is set --------------------------------------------------------------------

DAY = 24 * HOUR


@pytest.mark.parametrize("secs", [DAY, -DAY], ids=["forward", "back"])
def test_setting_the_clock_while_the_server_runs_moves_no_window(server: Server, secs: int) -> None:
    server.create("a")
    server.run(HOUR // 2)
    server.clock.step(secs=secs)
    server.create("b")
    server.run(HOUR // 2 - ROUND_MS // 1000)
    assert server.names == {"a", "b"}
    server.run(ROUND_MS // 1000)
    assert server.names == {"b"}
    server.run(HOUR // 2)
    assert server.names == set()


@pytest.mark.parametrize("secs", [DAY, -DAY], ids=["forward", "back"])
@pytest.mark.parametrize("when", ["before the end", "between two runs"])
@pytest.mark.parametrize("end", ["stop", "crash"])
def test_setting_the_clock_about_a_restart_moves_no_window(
    server: Server, secs: int, when: str, end: str
) -> None:
    server.create("a")
    server.run(HOUR // 2)
    if when == "before the end":
        server.clock.step(secs=secs)
        server.create("b")
        server.run(ROUND_MS // 1000)
    getattr(server, end)()
    if when == "between two runs":
        server.clock.step(secs=secs)
    server.open()
    server.run(HOUR // 2 - 3 * ROUND_MS // 1000)
    assert server.names >= {"a"}
    server.run(4 * ROUND_MS // 1000)
    assert "a" not in server.names
    server.run(HOUR // 2)
    assert server.names == set()


def test_a_write_after_the_clock_was_set_back_is_not_forgotten(server: Server) -> None:
    """By the wall clock it was before the round that knows of another use."""
    server.create("a")
    server.run(HOUR // 2)
    server.clock.step(secs=-DAY)
    server.engine.append(server.engine.find("a"), Append(b"x"), lambda _: None)
    server.settle()
    server.crash()
    server.open()
    server.run(HOUR - 2 * ROUND_MS // 1000)
    assert server.names == {"a"}


def test_windows_that_were_written_down_by_the_wall_clock_go_on(server: Server) -> None:
    """A directory of a server that knew no other."""
    server.create("a")
    server.create("b")
    id = server.engine.find("b").state.id
    now_ms = server.clock.now_ms()
    read_at_ms = now_ms + HOUR * 500
    server.engine.keep(
        {
            f"{OLD_PREFIX}{id:016x}": msgspec.msgpack.encode(read_at_ms),
            f"{OLD_PREFIX}alive": msgspec.msgpack.encode(read_at_ms),
        }
    )
    server.settle()
    server.crash()
    server.clock.advance(secs=DAY)
    server.open()
    server.run(HOUR // 2)
    assert server.names == {"b"}
    server.crash()
    server.open()
    assert not server.engine.take_documents(OLD_PREFIX)
    server.run(HOUR // 2)
    assert server.names == set()
