"""acid: what is deleted goes a slice at a time, and a stop in between leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from headrace.engine.engine import Engine
from headrace.errors import StreamNotFound
from headrace.protocol.offsets import START
from headrace.protocol.producers import ProducerHeaders
from headrace.protocol.requests import Append, Create
from headrace.storage.acid import transaction_writer
from headrace.storage.acid.acid_storage import AcidStorage
from headrace.storage.acid.lmdb_shard import Shard
from headrace.storage.acid.transaction_writer import TransactionWriter
from headrace.storage.verify import verify
from headrace.testing.virtual_clock import VirtualClock
from headrace.testing.waiting import DEADLINE_SECS

AT_ONCE = 5
APPENDS = 23


class Life:
    def __init__(self, directory: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.directory = directory
        self.engine = Engine(AcidStorage(directory, 1, loop), VirtualClock())

    def ask(self, command: Callable[..., None], *args: object) -> Any:
        return self._loop.run_until_complete(self._answer(command, args))

    async def _answer(self, command: Callable[..., None], args: tuple[object, ...]) -> object:
        future: asyncio.Future[object] = self._loop.create_future()
        command(*args, future.set_result)
        return await future

    def make(self, name: str) -> None:
        self.ask(self.engine.create, name, Create(content_type="text/plain"))
        for number in range(APPENDS):
            producer = ProducerHeaders(b"%d" % number, 0, 0)
            append = Append(b"data", "text/plain", producer=producer)
            self.ask(self.engine.append, self.engine.find(name), append)

    def entries(self) -> dict[str, int]:
        """How many values each database has, the registry's and the server's own included."""
        (shard,) = self.engine.storage._shards  # type: ignore[attr-defined]
        with shard._environment.begin() as transaction:
            return {
                name.decode(): transaction.stat(database)["entries"]
                for name, database in shard._databases.items()
            }

    def settle(self) -> None:
        """Until nothing is left to delete."""

        async def settled() -> None:
            while self.entries()["removed"]:
                await asyncio.sleep(0)

        self._loop.run_until_complete(asyncio.wait_for(settled(), DEADLINE_SECS))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_writer, "DELETES_PER_TRANSACTION_MAX", AT_ONCE)


@pytest.fixture
def deleted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many values each transaction has deleted of streams' data."""
    counts: list[int] = []
    write = TransactionWriter.write

    def counting(writer: TransactionWriter, batch: Any) -> None:
        write(writer, batch)
        counts.append(AT_ONCE - writer._deletes_left)

    monkeypatch.setattr(TransactionWriter, "write", counting)
    return counts


def test_a_large_stream_goes_a_slice_at_a_time(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, deleted: list[int]
) -> None:
    life = Life(tmp_path, loop)
    life.make("large")
    life.ask(life.engine.delete, "large")
    assert life.entries()["streams"] == 1, "it is gone with its answer"
    assert life.entries()["removed"] == 1
    life.settle()
    after = life.entries()
    assert {name: after[name] for name in ("producers", "receipts", "removed")} == {
        "producers": 0, "receipts": 0, "removed": 0,
    }  # fmt: skip
    assert max(deleted) == AT_ONCE
    assert sum(deleted) == 3 * APPENDS, "data, producers and receipts"
    life.engine.close()


def test_a_small_stream_goes_at_once(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    life = Life(tmp_path, loop)
    life.ask(life.engine.create, "small", Create(b"x", "text/plain"))
    life.ask(life.engine.delete, "small")
    assert life.entries()["removed"] == 0
    life.engine.close()


def test_a_deletion_that_was_stopped_in_the_middle_goes_on_at_the_next_start(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path, loop)
    life.make("large")
    with monkeypatch.context() as patched:
        # As after a kill: what follows the deletion's own transaction does not come to pass.
        patched.setattr(transaction_writer, "DELETES_PER_TRANSACTION_MAX", 0)
        life.ask(life.engine.delete, "large")
        assert life.entries()["removed"] == 1
        life.engine.close()
    report = verify(tmp_path)
    assert report is not None
    assert (report.findings, report.streams) == ([], 1)
    again = Life(tmp_path, loop)
    with pytest.raises(StreamNotFound):
        again.engine.find("large")
    # Another of that name, and since the clock stands still of that id.
    again.make("large")
    again.settle()
    found = again.entries()
    assert (found["producers"], found["receipts"]) == (APPENDS, APPENDS)
    chunk = again.ask(again.engine.read, again.engine.find("large"), START)
    assert chunk.data == b"data" * APPENDS
    again.engine.close()


def test_a_directory_from_before_there_was_such_a_list_is_opened_and_verified(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    life = Life(tmp_path, loop)
    life.make("s")
    life.engine.close()
    with lmdb.open(str(tmp_path / "acid" / "shard-000"), max_dbs=16) as environment:
        database = environment.open_db(b"removed")
        with environment.begin(write=True) as transaction:
            transaction.drop(database)
    report = verify(tmp_path)
    assert report is not None
    assert report.findings == []
    again = Life(tmp_path, loop)
    assert again.entries()["removed"] == 0
    again.engine.close()


def test_a_shard_that_forgets_what_is_left_to_delete_is_caught(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant does not take up the list that a crash left."""
    life = Life(tmp_path, loop)
    life.make("large")
    with monkeypatch.context() as patched:
        patched.setattr(transaction_writer, "DELETES_PER_TRANSACTION_MAX", 0)
        life.ask(life.engine.delete, "large")
        life.engine.close()
    recover = Shard.recover

    def forgetful(shard: Shard) -> Iterator[Any]:
        yield from recover(shard)
        shard._backlog.clear()

    monkeypatch.setattr(Shard, "recover", forgetful)
    again = Life(tmp_path, loop)
    again.ask(again.engine.create, "other", Create(b"x", "text/plain"))
    assert again.entries()["removed"] == 1
    again.engine.close()
