"""Group commit: who is told what, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from headrace.storage.base import Entry
from headrace.storage.committer import Committer
from headrace.testing.loop import SimulatedLoop


@pytest.mark.parametrize("seed", range(20))
def test_whoever_settles_while_others_are_told_waits_for_them(seed: int) -> None:
    """What is asked again at once would otherwise be asked for ever."""
    loop = SimulatedLoop(Random(seed))
    told: list[str] = []
    committer: Committer[str] = Committer(loop.as_loop, "test", lambda work: None, loop.lane)

    def committed(entries: Sequence[Entry]) -> None:
        told.extend(entry[0] for entry in entries)

    def failed(reason: object) -> None:
        pytest.fail(str(reason))

    def look() -> None:
        told.append("looked")
        if "last" not in told:
            committer.settle(look, failed)

    committer.start(committed, failed)
    committer.add("first", ("first", None, None))
    committer.settle(look, failed)
    committer.add("last", ("last", None, None))
    loop.run()
    assert loop.errors == []
    assert told == ["first", "looked", "last", "looked"]
    assert committer.is_idle


class Written:
    """A committer over a list of batches, and who was told of what."""

    def __init__(self, seed: int) -> None:
        self.loop = SimulatedLoop(Random(seed))
        self.batches: list[list[str]] = []
        self.told: list[str] = []
        self.failed: list[str] = []
        self.during: dict[str, Callable[[], None]] = {}
        self.committer: Committer[str] = Committer(
            self.loop.as_loop, "test", self._write, self.loop.lane
        )
        self.committer.start(
            lambda entries: self._tell(self.told, entries),
            lambda entries: self._tell(self.failed, entries),
        )

    def add(self, *names: str) -> None:
        for name in names:
            self.committer.add(name, (name, None, None))

    def _write(self, work: list[str]) -> None:
        for name in work:
            self.during.pop(name, lambda: None)()
        self.batches.append(work)

    def _tell(self, whom: list[str], entries: Sequence[Entry]) -> None:
        names = [entry[0] for entry in entries]
        written = {name for batch in self.batches for name in batch}
        assert whom is self.failed or written.issuperset(names), "told before it was written"
        whom.extend(names)


@pytest.mark.parametrize("seed", range(20))
def test_what_gathers_during_a_write_is_the_next_batch(seed: int) -> None:
    it = Written(seed)
    it.during["a"] = lambda: it.add("b", "c")
    it.during["c"] = lambda: it.add("d")
    it.add("a")
    it.loop.run()
    assert it.batches == [["a"], ["b", "c"], ["d"]]
    assert it.told == ["a", "b", "c", "d"]
    assert it.committer.is_idle
    assert it.committer.finished == it.committer.gathering - 1 == 3


def test_the_thread_goes_on_before_the_loop_has_heard() -> None:
    it = Written(0)
    it.during["a"] = lambda: it.add("b")
    it.add("a")
    it.committer._begin()
    [queue] = it.loop._handed_in.values()
    while queue:
        queue.popleft()()
    assert it.batches == [["a"], ["b"]]
    assert it.told == []
    it.loop.run()
    assert it.told == ["a", "b"]


@pytest.mark.parametrize("seed", range(20))
def test_after_a_failed_write_nothing_is_written_and_everybody_hears(seed: int) -> None:
    it = Written(seed)

    def fail() -> None:
        it.add("c")
        raise OSError("no more")

    it.during["a"] = lambda: it.add("b")
    it.during["b"] = fail
    it.add("a")
    it.loop.run()
    it.add("d")
    it.loop.run()
    assert it.batches == [["a"]]
    assert it.told == ["a"]
    assert it.failed == ["b", "c", "d"]
    assert it.committer.is_failed
    with pytest.raises(OSError, match="no more"):
        it.committer._failure.result()


@pytest.mark.parametrize("seed", range(20))
def test_other_work_comes_between_two_batches_however_many_there_are(seed: int) -> None:
    it = Written(seed)
    names = iter([f"more {number}" for number in range(50)])
    done: list[int] = []

    def more() -> None:
        name = next(names, None)
        if name is not None:
            it.during[name] = more
            it.add(name)

    def begin() -> None:
        more()
        it.committer.run(lambda: done.append(len(it.batches)), lambda: done.append(-1))

    it.during["a"] = begin
    it.add("a")
    it.loop.run()
    assert done[0] <= 2, "it does not wait for the last of them"
    assert done[1] == -1
    assert len(it.batches) == 51


@pytest.mark.parametrize("seed", range(20))
def test_what_is_added_before_the_end_is_written_at_the_end(seed: int) -> None:
    it = Written(seed)
    it.add("a")
    it.loop.step()
    it.add("b")
    it.committer.close()
    assert sorted(name for batch in it.batches for name in batch) == ["a", "b"]
