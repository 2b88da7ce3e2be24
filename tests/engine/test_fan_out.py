"""Very many may wait at a tail: how they are called, and what others have of the loop meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from headrace.engine.engine import Engine
from headrace.engine.fan_out import CALLS_PER_STEP, INLINE_MAX, SHORT_ROUND_MAX
from headrace.engine.slices import Slices
from headrace.engine.stream_runtime import Stream
from headrace.errors import HeadraceError
from headrace.limits import Limits
from headrace.protocol.requests import Append, Create
from headrace.storage.disk import RealDisk
from headrace.storage.file.file_storage import FileStorage
from headrace.testing.virtual_clock import VirtualClock
from headrace.testing.waiting import DEADLINE_SECS
from tests.engine.helpers import TEXT, Recorder, delete, new_engine, post, put

MANY = 3 * CALLS_PER_STEP + INLINE_MAX


class Counting(Recorder):
    """Counts its calls."""

    calls = 0

    def on_advance(self, stream: Stream) -> None:
        self.calls += 1
        super().on_advance(stream)


def looped(test: Callable[[Engine], Coroutine[None, None, None]]) -> Callable[[], None]:
    """Run with an engine whose slices are as short as they can be, on a loop of its own."""

    async def main() -> None:
        engine = new_engine()
        engine.fan_out.slices = Slices(asyncio.get_running_loop(), slice_secs=0)
        put(engine, "a")
        async with asyncio.timeout(DEADLINE_SECS):
            await test(engine)

    def run() -> None:
        asyncio.run(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def slices_of(engine: Engine) -> Slices:
    assert engine.fan_out.slices is not None
    return engine.fan_out.slices


async def all_called(engine: Engine) -> int:
    """How many turns of the loop that took."""
    turns = 0
    while len(slices_of(engine)):
        turns += 1
        await asyncio.sleep(0)
    return turns


def crowd(engine: Engine, name: str = "a", count: int = MANY) -> list[Counting]:
    return [Counting(engine, name) for _ in range(count)]


@looped
async def test_few_readers_are_called_within_the_append(engine: Engine) -> None:
    readers = crowd(engine, count=INLINE_MAX)
    post(engine, "a", b"1")
    assert {reader.received for reader in readers} == {b"1"}


@looped
async def test_others_have_their_turn_while_many_readers_are_called(engine: Engine) -> None:
    readers = crowd(engine)
    post(engine, "a", b"1")
    assert {reader.received for reader in readers} == {b""}
    turns = await all_called(engine)
    assert {reader.received for reader in readers} == {b"1"}
    assert turns >= MANY // CALLS_PER_STEP


@looped
async def test_what_is_appended_before_the_round_begins_is_announced_with_it(
    engine: Engine,
) -> None:
    readers = crowd(engine)
    for number in range(100):
        post(engine, "a", b"%d " % number)
    await all_called(engine)
    assert {reader.received for reader in readers} == {b"".join(b"%d " % n for n in range(100))}
    assert {reader.calls for reader in readers} <= {1, 2}


@looped
async def test_what_is_appended_during_a_round_reaches_everybody_in_order(engine: Engine) -> None:
    readers = crowd(engine)
    expected = b""
    for number in range(50):
        expected += b"%d " % number
        post(engine, "a", b"%d " % number)
        await asyncio.sleep(0)
    await all_called(engine)
    assert {reader.received for reader in readers} == {expected}


@looped
async def test_a_reader_that_leaves_before_its_call_is_not_called(engine: Engine) -> None:
    readers = crowd(engine)
    post(engine, "a", b"1")
    await asyncio.sleep(0)
    left = [reader for reader in readers if not reader.calls]
    for reader in left:
        reader.leave()
    await all_called(engine)
    assert left
    assert sum(reader.calls for reader in left) == 0
    assert engine.reader_count == MANY - len(left)


@looped
async def test_everybody_hears_of_the_last_append_before_the_end(engine: Engine) -> None:
    heard: list[bytes] = []

    class Listener(Counting):
        def on_gone(self, stream: Stream) -> None:
            heard.append(self.received)
            super().on_gone(stream)

    for _ in range(MANY):
        Listener(engine, "a")
    post(engine, "a", b"1")
    await asyncio.sleep(0)
    post(engine, "a", b"2")
    delete(engine, "a")
    await all_called(engine)
    assert heard == [b"12"] * MANY
    assert engine.reader_count == 0


@looped
async def test_a_delete_leaves_others_their_turn(engine: Engine) -> None:
    readers = crowd(engine)
    delete(engine, "a")
    assert not any(reader.gone for reader in readers)
    await all_called(engine)
    assert [reader.gone for reader in readers] == [1] * MANY
    assert [reader.calls for reader in readers] == [0] * MANY


@looped
async def test_a_stream_with_few_readers_does_not_wait_for_one_with_many(engine: Engine) -> None:
    put(engine, "few")
    put(engine, "some")
    slow, fast = crowd(engine, count=10 * SHORT_ROUND_MAX), crowd(engine, "few", 1)
    medium = crowd(engine, "some", SHORT_ROUND_MAX)
    post(engine, "a", b"1")
    await asyncio.sleep(0)
    post(engine, "some", b"1")
    post(engine, "few", b"1")
    assert fast[0].received == b"1"
    while not all(reader.calls for reader in medium):
        await asyncio.sleep(0)
    assert not slow[-1].calls
    await all_called(engine)


@looped
async def test_a_stream_that_always_grows_does_not_keep_the_others_waiting(
    engine: Engine,
) -> None:
    names = [f"busy/{number}" for number in range(10)]
    crowds = []
    for name in names:
        put(engine, name)
        crowds.append(crowd(engine, name, SHORT_ROUND_MAX + 1))
    for name in names:
        post(engine, name, b"x")
    while not all(reader.calls for readers in crowds for reader in readers):
        for name in names[:5]:
            post(engine, name, b"x")
        await asyncio.sleep(0)
    await all_called(engine)


@pytest.mark.faults
@looped
async def test_a_reader_that_raises_is_given_up_and_the_rest_is_called(engine: Engine) -> None:
    faults: list[HeadraceError] = []

    class Failing(Counting):
        def on_advance(self, stream: Stream) -> None:
            raise ZeroDivisionError

        def on_fault(self, fault: HeadraceError) -> None:
            faults.append(fault)

    readers = crowd(engine, count=MANY // 2)
    Failing(engine, "a")
    readers += crowd(engine, count=MANY // 2)
    post(engine, "a", b"1")
    await all_called(engine)
    assert {reader.received for reader in readers} == {b"1"}
    assert len(faults) == 1


def test_a_chain_of_streams_that_feed_each_other_does_not_recurse() -> None:
    engine = new_engine()
    length = 5000

    class Forwarding(Recorder):
        next_name = ""

        def on_advance(self, stream: Stream) -> None:
            super().on_advance(stream)
            if self.next_name:
                post(engine, self.next_name, self.received)

    for number in range(length):
        put(engine, f"link/{number}")
        if number:
            reader = Forwarding(engine, f"link/{number - 1}")
            reader.next_name = f"link/{number}"
    last = Recorder(engine, f"link/{length - 1}")
    post(engine, "link/0", b"x")
    assert last.received == b"x"


def test_all_appends_of_one_batch_are_one_call(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        limits = Limits()
        storage = FileStorage(RealDisk(tmp_path), limits, loop, sync=True, segment_bytes=2**20)
        engine = Engine(storage, VirtualClock(), limits)
        outcomes: list[object] = []
        engine.create("a", Create(content_type=TEXT), outcomes.append)
        while not outcomes:
            await asyncio.sleep(0.001)
        reader = Counting(engine, "a")
        for _ in range(50):
            engine.append(engine.find("a"), Append(b"x", TEXT), outcomes.append)
        while len(outcomes) < 51:
            await asyncio.sleep(0.001)
        assert (reader.received, reader.calls) == (b"x" * 50, 1)
        engine.close()

    asyncio.run(main())
