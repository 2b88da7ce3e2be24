"""The manager in this process: bounds that are too large to fill, time, and its own defects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from headrace.clock import SystemClock
from headrace.engine.engine import Engine
from headrace.protocol.expiry import Lifetime
from headrace.protocol.requests import Append, Create
from headrace.storage.memory import MemoryStorage
from headrace.subscriptions import dispatcher, model, requests
from headrace.subscriptions import manager as manager_module
from headrace.subscriptions.errors import SubscriptionsFull
from headrace.subscriptions.links import (
    LINK_BYTES,
    SEGMENT_BYTES,
    SUBSCRIPTION_BYTES,
    Quota,
)
from headrace.subscriptions.manager import SubscriptionManager, SubscriptionSettings
from headrace.testing.virtual_clock import VirtualClock
from headrace.testing.waiting import DEADLINE_SECS
from tests.durability.modes import open_storage

HOOK = {"type": "webhook", "pattern": "**", "webhook": {"url": "https://w.example/"}}
URL = "http://server.example"


def in_loop(
    test: Callable[[SubscriptionManager, Engine, VirtualClock], None],
    settings: SubscriptionSettings | None = None,
) -> None:
    async def main() -> None:
        clock = VirtualClock()
        engine = Engine(MemoryStorage(), clock)
        loop = asyncio.get_running_loop()
        manager = SubscriptionManager(engine, settings or SubscriptionSettings(), loop)
        test(manager, engine, clock)
        await manager.stop()

    asyncio.run(main())


def create(engine: Engine, name: str, **config: object) -> None:
    engine.create(name, Create(**config), lambda _: None)  # type: ignore[arg-type]


def linked(manager: SubscriptionManager, id: str) -> list[str]:
    return [stream["path"] for stream in manager.get(id)["streams"]]


def bounded(links: int, per_subscription: int = 1000) -> SubscriptionSettings:
    """Room for one subscription with a pattern of one segment and this many links."""
    room = SUBSCRIPTION_BYTES + SEGMENT_BYTES + len("**https://w.example/")
    return SubscriptionSettings(quota=Quota(room + links * (LINK_BYTES + 1), per_subscription))


def test_links_have_a_bound_over_all_subscriptions(caplog: pytest.LogCaptureFixture) -> None:
    def test(manager: SubscriptionManager, engine: Engine, _: VirtualClock) -> None:
        for name in "abc":
            create(engine, name)
        manager.put("one", requests.parse_config(HOOK), URL)
        named = requests.parse_config(HOOK | {"pattern": None, "streams": ["x", "y"]})
        with pytest.raises(SubscriptionsFull):
            manager.put("two", named, URL)
        assert len(manager) == 1
        with pytest.raises(SubscriptionsFull):
            manager.add_streams("one", ("x", "y"))
        assert linked(manager, "one") == ["a", "b", "c"]
        assert manager.get("one")["degraded"] is None
        create(engine, "d")
        create(engine, "e")
        assert linked(manager, "one") == ["a", "b", "c", "d"]
        assert "does not follow streams" in caplog.text
        assert (manager.degraded_count, manager.get("one")["status"]) == (1, "degraded")
        assert "webhooks.max_memory_bytes" in manager.get("one")["degraded"]
        manager.delete("one")
        assert (manager.degraded_count, manager.link_count, manager.used_bytes) == (0, 0, 0)
        manager.put("two", named, URL)
        assert linked(manager, "two") == ["x", "y"]

    in_loop(test, bounded(links=4))


def test_links_have_a_bound_for_one_subscription() -> None:
    def test(manager: SubscriptionManager, engine: Engine, _: VirtualClock) -> None:
        for name in "abc":
            create(engine, name)
        with pytest.raises(SubscriptionsFull, match="max_links_per_subscription"):
            manager.put("all", requests.parse_config(HOOK), URL)
        assert (len(manager), manager.link_count, manager.used_bytes) == (0, 0, 0)
        assert not any(engine.streams[name].watchers for name in "abc")
        named = requests.parse_config(HOOK | {"pattern": None, "streams": ["a", "y"]})
        manager.put("two", named, URL)
        with pytest.raises(SubscriptionsFull, match="max_links_per_subscription"):
            manager.add_streams("two", ("c",))
        manager.add_streams("two", ("a",))  # which it has

    in_loop(test, bounded(links=100, per_subscription=2))


def test_text_counts_against_the_bound_too() -> None:
    def test(manager: SubscriptionManager, _: Engine, __: VirtualClock) -> None:
        long = HOOK | {"pattern": None, "streams": ["x" * 4000]}
        with pytest.raises(SubscriptionsFull, match="max_memory_bytes"):
            manager.put("long", requests.parse_config(long), URL)
        described = HOOK | {"description": "x" * 4000}
        with pytest.raises(SubscriptionsFull, match="max_memory_bytes"):
            manager.put("described", requests.parse_config(described), URL)
        assert manager.used_bytes == 0

    in_loop(test, bounded(links=4))


def test_what_was_missed_is_followed_from_its_start_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager_module, "CATCH_UP_SECS", 0)

    async def main() -> None:
        engine = Engine(MemoryStorage(), VirtualClock())
        manager = SubscriptionManager(engine, bounded(links=3), asyncio.get_running_loop())
        for name in "ab":
            create(engine, name)
        manager.put("one", requests.parse_config(HOOK), URL)
        for name in "cde":
            create(engine, name, body=b"x")
        assert linked(manager, "one") == ["a", "b", "c"]
        engine.delete("a", lambda _: None)
        async with asyncio.timeout(DEADLINE_SECS):
            while linked(manager, "one") != ["b", "c", "d"]:
                await asyncio.sleep(0)
        assert manager.get("one")["status"] == "degraded"
        engine.delete("b", lambda _: None)
        async with asyncio.timeout(DEADLINE_SECS):
            while manager.get("one")["degraded"] is not None:
                await asyncio.sleep(0)
        assert linked(manager, "one") == ["c", "d", "e"]
        assert {s["acked_offset"] for s in manager.get("one")["streams"]} == {"-1"}
        assert set(manager._followers["one"].subscription.pending) == {"c", "d", "e"}
        assert manager.degraded_count == 0
        await manager.stop()

    asyncio.run(main())


def step_through(steps: Generator[None, None, object], between: Callable[[int], None]) -> int:
    """Run `steps` to their end, with `between` after each; how many there were."""
    count = 0
    for _ in steps:
        between(count)
        count += 1
    return count


def test_a_subscription_is_made_in_steps_and_misses_nothing_that_happens_between_them() -> None:
    def test(manager: SubscriptionManager, engine: Engine, _: VirtualClock) -> None:
        for number in range(1000):
            create(engine, f"s/{number:04}")
        config = requests.parse_config(HOOK | {"pattern": "s/*"})

        def meddle(step: int) -> None:
            assert len(manager) == 0
            if step == 1:
                create(engine, "s/new", body=b"x")
                engine.delete("s/0999", lambda _: None)
                engine.delete("s/0000", lambda _: None)
                create(engine, "s/0000", body=b"x")
                for name in ("s/0001", "s/0998"):
                    engine.append(
                        engine.find(name), Append(b"x", "application/octet-stream"), lambda _: None
                    )

        assert step_through(manager.put_steps("one", config, URL), meddle) >= 5
        links = manager._followers["one"].subscription.links
        assert len(links) == 1000
        assert "s/0999" not in links
        pending = manager._followers["one"].subscription.pending
        # What had been looked at by then is pending; what had not was there before.
        assert {"s/new", "s/0000", "s/0001"} <= set(pending)
        assert links["s/0998"].acked == engine.streams["s/0998"].visible
        assert links["s/new"].acked is None
        assert step_through(manager.delete_steps("one"), lambda _: None) >= 5
        assert manager.link_count == 0
        assert not any(stream.watchers for stream in engine.streams.values())

    in_loop(test)


def test_who_asks_for_a_subscription_that_is_being_made_waits_for_it() -> None:
    def test(manager: SubscriptionManager, engine: Engine, _: VirtualClock) -> None:
        for number in range(1000):
            create(engine, f"s/{number:04}")
        config = requests.parse_config(HOOK)
        first, second = (manager.put_steps("one", config, URL) for _ in range(2))
        ending = manager.delete_steps("one")
        answers: list[object] = []
        waiting: list[Generator[None, None, object]] = [first, second]
        while waiting:
            for steps in list(waiting):
                try:
                    next(steps)
                except StopIteration as finished:
                    waiting.remove(steps)
                    answers.append(finished.value[0])
        assert answers == [True, False]
        next(ending)
        again = manager.put_steps("one", config, URL)
        next(again)
        assert len(manager) == 0
        step_through(ending, lambda _: next(again))
        step_through(again, lambda _: None)
        assert (len(manager), manager.link_count) == (1, 1000)

    in_loop(test)


def test_a_stream_whose_time_is_over_is_not_followed() -> None:
    def test(manager: SubscriptionManager, engine: Engine, clock: VirtualClock) -> None:
        create(engine, "short", lifetime=Lifetime(ttl_secs=1))
        create(engine, "long")
        clock.advance(secs=2)
        manager.put("one", requests.parse_config(HOOK), URL)
        assert linked(manager, "one") == ["long"]

    in_loop(test)


def test_a_stream_that_expires_takes_its_link_along() -> None:
    def test(manager: SubscriptionManager, engine: Engine, clock: VirtualClock) -> None:
        create(engine, "short", lifetime=Lifetime(ttl_secs=1))
        manager.put("one", requests.parse_config(HOOK), URL)
        assert linked(manager, "one") == ["short"]
        clock.advance(secs=2)
        engine.housekeeping.run()
        assert linked(manager, "one") == []

    in_loop(test)


def test_a_deleted_subscription_leaves_no_watcher_behind() -> None:
    def test(manager: SubscriptionManager, engine: Engine, _: VirtualClock) -> None:
        create(engine, "a")
        manager.put("one", requests.parse_config(HOOK), URL)
        assert engine.streams["a"].watchers
        manager.delete("one")
        assert not engine.streams["a"].watchers

    in_loop(test)


def test_nothing_happens_within_the_append_that_wakes() -> None:
    """What the append brings about comes in the next turn of the loop."""

    async def main() -> None:
        engine = Engine(MemoryStorage(), VirtualClock())
        loop = asyncio.get_running_loop()
        manager = SubscriptionManager(engine, SubscriptionSettings(), loop)
        create(engine, "wake", content_type="application/json")
        pull = {"type": "pull-wake", "pattern": "events/*", "wake_stream": "wake"}
        manager.put("one", requests.parse_config(pull), URL)
        for n in range(3):
            create(engine, f"events/{n}", body=b"x")
        assert engine.streams["wake"].visible.messages == 0
        async with asyncio.timeout(DEADLINE_SECS):
            while not engine.streams["wake"].visible.messages:
                await asyncio.sleep(0)
        assert engine.streams["wake"].visible.messages == 1
        await manager.stop()

    asyncio.run(main())


PULL = {"type": "pull-wake", "pattern": "events/*", "wake_stream": "wakes"}


@pytest.mark.faults
def test_a_defect_in_one_subscription_sets_it_aside_and_the_others_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        engine = Engine(MemoryStorage(), VirtualClock())
        loop = asyncio.get_running_loop()
        manager = SubscriptionManager(engine, SubscriptionSettings(), loop)
        manager.start()
        create(engine, "wakes", content_type="application/json")
        for id in ("bad", "good"):
            manager.put(id, requests.parse_config(PULL), URL)
        # A state that the model never makes: what is pending is not linked.
        subscription = manager._followers["bad"].subscription
        create(engine, "events/1", body=b"x")
        subscription.links.clear()
        await until(lambda: engine.streams["wakes"].visible.messages == 1)
        await until(lambda: manager.fault_count == 1)
        assert (manager.get("bad")["status"], manager.get("good")["status"]) == (
            "degraded",
            "active",
        )
        assert "An internal error stopped its wakes" in manager.get("bad")["degraded"]
        assert manager.degraded_count == 1
        assert "'bad'" in caplog.text
        command = Append(b"x", "application/octet-stream")
        engine.append(engine.find("events/1"), command, lambda _: None)
        await asyncio.sleep(0)
        assert manager.fault_count == 1, "it is left alone"
        await manager.stop()

    asyncio.run(main())


@pytest.mark.faults
def test_a_defect_in_a_timer_sets_one_subscription_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        engine = Engine(MemoryStorage(), SystemClock())
        loop = asyncio.get_running_loop()
        manager = SubscriptionManager(engine, SubscriptionSettings(), loop)
        manager.start()
        create(engine, "wakes", content_type="application/json")
        manager.put("one", requests.parse_config(PULL | {"lease_ttl_ms": 1000}), URL)
        create(engine, "events/1", body=b"x")
        await until(lambda: engine.streams["wakes"].visible.messages == 1)
        manager.claim("one", "worker")
        monkeypatch.setattr(dispatcher, "RETRY_SECS", 0.01)
        with monkeypatch.context() as patched:
            patched.setattr(model, "decide_expiry", defect)
            await until(lambda: manager.fault_count >= 2)
        assert manager.get("one")["status"] == "degraded"
        await until(lambda: not manager.degraded_count)
        assert manager.get("one")["degraded"] is None
        await until(lambda: engine.streams["wakes"].visible.messages == 2)
        await manager.stop()

    asyncio.run(main())


def defect(*_: object) -> None:
    raise ZeroDivisionError


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECS):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_successor_is_followed_before_the_end_of_its_predecessor_is_durable(
    tmp_path: Path,
) -> None:
    """DELETE and PUT of one name share a batch; the news of the first comes after the second."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        engine = Engine(open_storage("file-durable", tmp_path, loop), SystemClock())
        manager = SubscriptionManager(engine, SubscriptionSettings(), loop)
        create(engine, "a")
        manager.put("one", requests.parse_config(HOOK | {"streams": ["a"]}), URL)
        engine.delete("a", lambda _: None)
        create(engine, "a")
        done = asyncio.Event()
        engine.when_durable("a", done.set)
        await asyncio.wait_for(done.wait(), DEADLINE_SECS)
        assert linked(manager, "one") == ["a"]
        (link,) = [s for s in manager.get("one")["streams"] if s["path"] == "a"]
        assert link["link_type"] == "glob"
        assert link["acked_offset"] == "-1"
        await manager.stop()
        engine.close()

    asyncio.run(main())


def test_an_append_to_the_predecessor_is_not_taken_for_one_to_the_successor(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        engine = Engine(open_storage("file-durable", tmp_path, loop), SystemClock())
        manager = SubscriptionManager(engine, SubscriptionSettings(), loop)
        create(engine, "a")
        manager.put("one", requests.parse_config(HOOK), URL)
        command = Append(b"x", "application/octet-stream")
        engine.append(engine.find("a"), command, lambda _: None)
        engine.delete("a", lambda _: None)
        create(engine, "a")
        done = asyncio.Event()
        engine.when_durable("a", done.set)
        await asyncio.wait_for(done.wait(), DEADLINE_SECS)
        subscription = manager._followers["one"].subscription
        assert subscription.links["a"].tail == engine.streams["a"].visible
        assert not subscription.pending
        await manager.stop()
        engine.close()

    asyncio.run(main())


def test_links_that_a_crash_left_without_their_subscription_are_removed(tmp_path: Path) -> None:
    """A subscription is made, and ended, in steps; what is between them is neither."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for run in range(3):
            engine = Engine(open_storage("file-durable", tmp_path, loop), SystemClock())
            kept = set(engine._documents)
            manager = SubscriptionManager(engine, SubscriptionSettings(), loop)
            assert len(manager) == 0
            if run == 0:
                for number in range(1000):
                    create(engine, f"s/{number:04}")
                steps = manager.put_steps("one", requests.parse_config(HOOK), URL)
                for _ in range(3):
                    next(steps)
            done = asyncio.Event()
            engine.when_documents_durable(done.set)
            await asyncio.wait_for(done.wait(), DEADLINE_SECS)
            has_links = any(name.startswith("subscriptions/one/links/") for name in kept)
            assert has_links == (run == 1)
            await manager.stop()
            engine.close()

    asyncio.run(main())
