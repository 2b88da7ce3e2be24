"""The manager in this process: bounds that are too large to fill, time, and its own defects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.clock import SystemClock
from headrace.engine.engine import Engine
from headrace.protocol.expiry import Lifetime
from headrace.protocol.requests import Create
from headrace.storage.memory import MemoryStorage
from headrace.subscriptions import membership, requests
from headrace.subscriptions.errors import SubscriptionsFull
from headrace.subscriptions.manager import SubscriptionManager, SubscriptionSettings
from headrace.testing.clock import VirtualClock
from headrace.testing.waiting import DEADLINE_SECS
from tests.durability.modes import open_storage

HOOK = {"type": "webhook", "pattern": "**", "webhook": {"url": "https://w.example/"}}
URL = "http://server.example"


def in_loop(test: Callable[[SubscriptionManager, Engine, VirtualClock], None]) -> None:
    async def main() -> None:
        clock = VirtualClock()
        engine = Engine(MemoryStorage(), clock)
        loop = asyncio.get_running_loop()
        manager = SubscriptionManager(engine, SubscriptionSettings(), loop)
        test(manager, engine, clock)
        await manager.stop()

    asyncio.run(main())


def create(engine: Engine, name: str, **config: object) -> None:
    engine.create(name, Create(**config), lambda _: None)  # type: ignore[arg-type]


def linked(manager: SubscriptionManager, id: str) -> list[str]:
    return [stream["path"] for stream in manager.get(id)["streams"]]


def test_links_have_a_bound_over_all_subscriptions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
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
        create(engine, "d")
        create(engine, "e")
        assert linked(manager, "one") == ["a", "b", "c", "d"]
        assert "does not follow a new stream" in caplog.text
        manager.delete("one")
        manager.put("two", named, URL)
        assert linked(manager, "two") == ["x", "y"]

    monkeypatch.setattr(membership, "LINKS_MAX", 4)
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
        engine.sweep()
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


def test_a_defect_in_a_timer_is_heard_of() -> None:
    """The event loop would log it and go on without the subscription."""

    async def main() -> None:
        engine = Engine(MemoryStorage(), VirtualClock())
        loop = asyncio.get_running_loop()
        manager = SubscriptionManager(engine, SubscriptionSettings(), loop)
        manager.start()

        def defect() -> None:
            raise ZeroDivisionError

        loop.call_soon(manager._wakes._guarded, defect)
        try:
            async with asyncio.timeout(DEADLINE_SECS):
                await manager.failed()
        finally:
            await manager.stop()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())


def test_a_defect_in_a_delivery_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        engine = Engine(MemoryStorage(), VirtualClock())
        loop = asyncio.get_running_loop()
        manager = SubscriptionManager(engine, SubscriptionSettings(), loop)
        manager.start()
        manager.put("one", requests.parse_config(HOOK), URL)
        # A state that the model never makes: a wake for a stream that is not linked.
        create(engine, "a", body=b"x")
        member = manager._members["one"]
        loop.call_soon(member.subscription.links.clear)
        try:
            async with asyncio.timeout(DEADLINE_SECS):
                await manager.failed()
        finally:
            await manager.stop()

    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(main())
    assert caught.group_contains(KeyError)


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
        engine.settle("a", done.set)
        await asyncio.wait_for(done.wait(), DEADLINE_SECS)
        assert linked(manager, "one") == ["a"]
        (link,) = [s for s in manager.get("one")["streams"] if s["path"] == "a"]
        assert link["link_type"] == "glob"
        assert link["acked_offset"] == "-1"
        await manager.stop()
        engine.close()

    asyncio.run(main())
