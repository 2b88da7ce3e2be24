"""Long work in slices: who has to wait for it, and for how much."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from headrace.engine.slices import BEGUN_MAX, Slices
from headrace.testing.waiting import DEADLINE_SECS


def counting(done: list[str], name: str, steps: int) -> Iterator[None]:
    for _ in range(steps):
        yield
    done.append(name)


async def finished(slices: Slices) -> None:
    async with asyncio.timeout(DEADLINE_SECS):
        while len(slices):
            await asyncio.sleep(0)


def never(error: Exception) -> None:
    raise AssertionError from error


def test_work_that_fits_in_a_slice_is_done_at_once() -> None:
    async def main() -> None:
        done: list[str] = []
        slices = Slices(asyncio.get_running_loop(), slice_secs=DEADLINE_SECS)
        slices.run(counting(done, "one", 1000), never)
        assert done == ["one"]

    asyncio.run(main())


def test_others_have_their_turn_between_the_slices_of_long_work() -> None:
    async def main() -> None:
        done: list[str] = []
        slices = Slices(asyncio.get_running_loop(), slice_secs=0)
        slices.run(counting(done, "long", 100), never)
        turns = 0
        while not done:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 100 // 2

    asyncio.run(main())


def test_work_that_is_later_does_nothing_now_and_short_work_passes_long_work_by() -> None:
    async def main() -> None:
        done: list[str] = []
        slices = Slices(asyncio.get_running_loop(), slice_secs=0)
        for number in range(10):
            slices.run_later(counting(done, f"long {number}", 500), never)
        slices.run_later(counting(done, "short", 1), never, is_short=True)
        assert done == []
        await finished(slices)
        assert done == ["short", *(f"long {number}" for number in range(10))]

    asyncio.run(main())


def test_few_pieces_of_work_are_begun_at_a_time() -> None:
    async def main() -> None:
        begun: set[int] = set()
        most = 0

        def work(number: int) -> Iterator[None]:
            nonlocal most
            begun.add(number)
            most = max(most, len(begun))
            for _ in range(20):
                yield
            begun.remove(number)

        slices = Slices(asyncio.get_running_loop(), slice_secs=0)
        for number in range(50):
            slices.run_later(work(number), never)
        await finished(slices)
        assert most == BEGUN_MAX

    asyncio.run(main())


def test_work_that_fails_says_so_and_ends_no_other() -> None:
    async def main() -> None:
        done: list[str] = []
        errors: list[Exception] = []

        def failing() -> Iterator[None]:
            yield
            raise ZeroDivisionError

        slices = Slices(asyncio.get_running_loop(), slice_secs=0)
        slices.run_later(failing(), errors.append)
        slices.run_later(counting(done, "other", 3), never)
        await finished(slices)
        assert done == ["other"]
        assert [type(error) for error in errors] == [ZeroDivisionError]

    asyncio.run(main())


def test_work_goes_on_after_a_defect_in_telling_that_work_failed() -> None:
    """What raises within a turn is the event loop's to log; what comes later has its turn."""

    def failing() -> Iterator[None]:
        yield
        raise ValueError("a defect")

    async def main() -> None:
        done: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, facts: done.append(repr(facts["exception"].__cause__)))
        slices = Slices(loop, slice_secs=0)
        slices.run_later(failing(), never)
        slices.run_later(counting(done, "the next", 3), never)
        await finished(slices)
        assert done == ["ValueError('a defect')", "the next"]

    asyncio.run(main())
