"""Shards commit independently: what spans two of them must not depend on which comes first."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from headrace.engine.engine import Engine
from headrace.engine.registry import STALE_MESSAGES_MIN
from headrace.errors import StreamNotFound
from headrace.protocol.offsets import BEGINNING, START, Position
from headrace.protocol.requests import Create, ForkRequest
from headrace.storage.acid.acid_storage import HOT_BYTES_MAX, AcidLog, AcidStorage
from headrace.storage.base import Range
from headrace.storage.memory import MemoryLog
from headrace.testing.virtual_clock import VirtualClock
from tests.durability.modes import SHARDS

DEADLINE_SECS = 10.0
PLAIN = Create(b"plain", "text/plain")


class Server:
    """An engine over shards of which one can be held back, and a machine that can crash."""

    def __init__(self, directory: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._directory = directory
        self._held = threading.Event()
        self._held.set()
        self._lives = 0
        self._open()

    def _open(self) -> None:
        self.engine = Engine(AcidStorage(self._data, SHARDS, self.loop), VirtualClock())

    @property
    def _data(self) -> Path:
        return self._directory / str(self._lives)

    def answer(self, future: asyncio.Future[Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(future, DEADLINE_SECS))

    def create(self, name: str, command: Create) -> asyncio.Future[Any]:
        future = self.loop.create_future()
        self.engine.create(name, command, future.set_result)
        return future

    def delete(self, name: str) -> asyncio.Future[Any]:
        future = self.loop.create_future()
        self.engine.delete(name, future.set_result)
        return future

    def hold(self, name: str) -> None:
        """Nothing becomes durable in the shard of this stream until `release`."""
        log = self.engine.streams[name].log
        assert isinstance(log, AcidLog)
        committer = log.shard.committer
        write = committer._write

        def later(work: Any) -> None:
            assert self._held.wait(DEADLINE_SECS), "a held shard is released"
            write(work)

        self._held.clear()
        committer._write = later

    def crash(self) -> None:
        """Go on from what is on disk at this moment."""
        before, old = self._data, self.engine
        self._lives += 1
        shutil.copytree(before, self._data)
        self._held.set()
        old.close()
        self._open()

    def close(self) -> None:
        self._held.set()
        self.engine.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    loop = asyncio.new_event_loop()
    one = Server(tmp_path, loop)
    yield one
    one.close()
    loop.close()


def shard_of(name: str) -> int:
    return int(google_crc32c.value(name.encode())) % SHARDS


NAME = "name"
ELSEWHERE = next(f"source{n}" for n in range(99) if shard_of(f"source{n}") != shard_of(NAME))


def test_a_name_used_again_in_another_shard_leaves_nothing_of_the_fork_before_it(
    server: Server,
) -> None:
    server.answer(server.create(ELSEWHERE, PLAIN))
    server.answer(server.create(NAME, Create(fork=ForkRequest(ELSEWHERE, None, 0))))
    server.hold(ELSEWHERE)
    server.delete(NAME)
    again = server.create(NAME, PLAIN)
    done, _ = server.loop.run_until_complete(asyncio.wait([again], timeout=1))
    server.crash()
    if not done:
        return  # it waits for the delete it rests on: nothing was promised
    server.answer(server.delete(ELSEWHERE))
    with pytest.raises(StreamNotFound):
        server.engine.find(ELSEWHERE)


def test_a_confirmed_create_waits_for_the_create_and_not_for_the_delete_before_it(
    server: Server,
) -> None:
    server.answer(server.create(ELSEWHERE, PLAIN))
    server.answer(server.create(NAME, Create(fork=ForkRequest(ELSEWHERE, None, 0))))
    # The fork leaves (its source's shard), the plain stream comes (its own shard, held back).
    holder = next(f"h{n}" for n in range(99) if shard_of(f"h{n}") == shard_of(NAME))
    server.answer(server.create(holder, PLAIN))
    server.hold(holder)
    server.delete(NAME)
    server.create(NAME, PLAIN)
    confirmed = server.create(NAME, PLAIN)
    done, _ = server.loop.run_until_complete(asyncio.wait([confirmed], timeout=1))
    assert not done, "a PUT was confirmed before the stream it confirms was durable"


def test_a_tail_in_memory_is_read_on_the_loop_only(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop appends to it and cuts it: a thread that reads meanwhile sees it half changed."""
    readers: set[str] = set()
    read = MemoryLog.read

    def noting(self: MemoryLog, start: Position, limit: Position, bytes_max: int) -> Range | None:
        readers.add(threading.current_thread().name)
        return read(self, start, limit, bytes_max)

    messages = b"[%b]" % b",".join([b'"%b"' % (b"x" * 1000)] * (2 * HOT_BYTES_MAX // 1000))
    server.answer(server.create(ELSEWHERE, Create(messages, "application/json")))
    server.answer(server.create(NAME, Create(b"2", fork=ForkRequest(ELSEWHERE, None, 0))))
    monkeypatch.setattr(MemoryLog, "read", noting)
    found = server.loop.create_future()
    server.engine.read(server.engine.find(NAME), START, found.set_result)
    assert server.answer(found).data.endswith(b"2,")
    assert readers <= {threading.current_thread().name}


def test_the_registry_can_be_read_from_its_beginning_while_it_is_compacted(
    server: Server,
) -> None:
    registry = server.engine.find("__registry__")
    for number in range(STALE_MESSAGES_MIN):
        server.create(f"s{number}", PLAIN)
        pending = server.delete(f"s{number}")
        server.engine.start_position(registry, BEGINNING)
    server.answer(pending)
    assert registry.state.trim_offset.messages, "the registry was compacted"
