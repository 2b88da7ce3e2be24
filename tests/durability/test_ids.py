"""An id is never given twice: what ETags, links and files are known by outlives the streams."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.engine.engine import Engine
from headrace.protocol.offsets import Position
from headrace.protocol.requests import Append, Create
from headrace.storage.base import ignore
from headrace.storage.memory import MemoryStorage
from headrace.storage.transfer import export_directory, import_directory
from headrace.testing.virtual_clock import VirtualClock
from tests.durability.crash_machine import Machine, small_windows
from tests.durability.modes import DURABLE_MODES, SHARDS, open_storage
from tests.engine.helpers import put

TEXT = "text/plain"
EARLY_MS = 1_000


@pytest.fixture(autouse=True)
def windows() -> Iterator[None]:
    with small_windows():
        yield


def new_machine() -> Machine:
    machine = Machine(1)
    machine.segment_bytes = 700
    return machine


def make_and_delete(machine: Machine, name: str) -> int:
    machine.create(name, Create(b"x" * 100, TEXT))
    machine.loop.run()
    stream_id = machine.engine.streams[name].state.id
    machine.delete(name)
    machine.loop.run()
    return stream_id


@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["in the journal", "in files"])
def test_ids_of_deleted_streams_are_known_to_later_runs(is_checkpointed: bool) -> None:
    machine = new_machine()
    machine.start()
    used = {make_and_delete(machine, "a") for _ in range(3)}
    if is_checkpointed:
        machine.finish()
    for _ in range(3):
        machine.disk.kill()
        machine.clock = VirtualClock(EARLY_MS)
        machine.start()
        new = make_and_delete(machine, "a")
        assert new > max(used)
        used.add(new)


def test_the_id_of_a_snapshot_is_not_given_again() -> None:
    """Its file may still be on its way out when another would be written in its place."""
    machine = new_machine()
    machine.start()
    machine.create_bucket("b")
    machine.loop.run()
    machine.create("/b/doc", Create(b"first", TEXT))
    machine.loop.run()
    machine.publish("/b/doc", Position(1, 5), b"folded")
    machine.loop.run()
    snapshot = machine.engine.streams["/b/doc"].state.snapshot
    assert snapshot is not None
    machine.delete("/b/doc")
    machine.finish()
    machine.disk.kill()
    machine.clock = VirtualClock(EARLY_MS)
    machine.start()
    assert machine.engine.new_id() > snapshot.blob_id


@pytest.mark.parametrize("mode", DURABLE_MODES)
def test_an_import_knows_the_ids_that_were_used_where_it_comes_from(
    mode: str, tmp_path: Path
) -> None:
    async def next_id(directory: Path) -> int:
        loop = asyncio.get_running_loop()
        engine = Engine(open_storage(mode, directory, loop), VirtualClock(EARLY_MS))
        put_and_delete(engine)
        await settled(engine)
        engine.close()
        return engine.new_id()

    async def play() -> None:
        used = await next_id(tmp_path / "one")
        await export_directory(tmp_path / "one", tmp_path / "export", ignored)
        shards = SHARDS if mode == "acid" else None
        await import_directory(tmp_path / "export", tmp_path / "two", shards, ignored)
        assert await next_id(tmp_path / "two") > used

    asyncio.run(play())


def ignored(*_: object) -> None:
    """Nobody watches the progress."""


def put_and_delete(engine: Engine) -> None:
    engine.create("a", Create(b"x", TEXT), ignore)
    engine.delete("a", ignore)


async def settled(engine: Engine) -> None:
    done = asyncio.Event()
    engine.when_durable("a", done.set)
    await asyncio.wait_for(done.wait(), 30)


def test_two_runs_in_memory_begin_far_from_each_other() -> None:
    first = Engine(MemoryStorage(), VirtualClock())
    put(first, "a")
    other = Engine(MemoryStorage(), VirtualClock())
    put(other, "a")
    assert abs(first.streams["a"].state.id - other.streams["a"].state.id) > 1_000_000


# -- directories of servers that did give ids twice ---------------------------------------------


def machine_with_an_id_used_twice(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Two runs whose clock stood still between them, as they were before ids were kept."""
    machine = new_machine()
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_first_id", lambda engine: max(engine._next_id, 1 << 40))
        machine.start()
        machine.create("kept", Create(b"kept", TEXT))
        first = make_and_delete(machine, "a")
        machine.disk.kill()
        machine.start()
        machine.used_ids.clear()  # what the machine watches for is what happens here
        machine.create("a", Create(b"another", TEXT))
        machine.loop.run()
        assert machine.engine.streams["a"].state.id == first
        machine.disk.kill()
    return machine


def test_a_journal_in_which_an_id_was_given_again_is_served_and_carried_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = machine_with_an_id_used_twice(monkeypatch)
    machine.start()
    for _ in range(20):
        machine.append("kept", Append(b"y" * 100))
        machine.loop.run()
        machine.engine.housekeeping.run()
        machine.loop.run()
    machine.finish()
    machine.disk.kill()
    machine.start()
    stream = machine.engine.streams["a"]
    assert stream.state.tail == Position(1, len(b"another"))
    assert machine.engine.streams["kept"].state.tail.messages == 21
