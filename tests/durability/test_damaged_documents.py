"""A document that cannot be decoded costs what it describes, and no start.

A checksum covers every document, so what is found here comes of a defect or of another program.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.clock import SystemClock
from headrace.engine.engine import Engine
from headrace.errors import StoredBytesUnreadable
from headrace.http.start_check import start_findings
from headrace.protocol.expiry import Lifetime
from headrace.protocol.requests import Append, Create
from headrace.storage.base import ignore
from headrace.subscriptions import requests
from headrace.subscriptions.errors import Code, SubscriptionRefused
from headrace.subscriptions.manager import SubscriptionManager, SubscriptionSettings
from headrace.testing.waiting import DEADLINE_SECS
from tests.durability.modes import DURABLE_MODES, open_storage
from tests.engine.helpers import TEXT

PULL = {"type": "pull-wake", "streams": ["a"], "wake_stream": "wakes"}
URL = "http://server.example"
GARBAGE = (b"\xc1", b"\x93\x01")  # not MessagePack at all, and none of ours
ID = "damaged"
SUBSCRIPTION = [f"subscriptions/{ID}{part}" for part in ("", "/delivery", "/tails", "/links/a")]
KEYS = ["keys/webhook", "keys/token"]

Opened = tuple[Engine, SubscriptionManager]


@contextmanager
def opened(mode: str, directory: Path) -> Iterator[Opened]:
    loop = asyncio.get_running_loop()
    storage = open_storage(mode, directory, loop)
    try:
        engine = Engine(storage, SystemClock())
        manager = SubscriptionManager(engine, SubscriptionSettings(), loop)
    except BaseException:
        storage.abandon()
        raise
    yield engine, manager
    engine.close()


async def durable(engine: Engine) -> None:
    done = asyncio.Event()
    engine.when_documents_durable(done.set)
    await asyncio.wait_for(done.wait(), DEADLINE_SECS)


async def make(mode: str, directory: Path) -> list[str]:
    """A server's directory, with a wake under way; the names of its documents."""
    with opened(mode, directory) as (engine, manager):
        manager.start()
        engine.create("a", Create(b"", TEXT), ignore)
        engine.create("wakes", Create(b"", "application/json"), ignore)
        engine.create("sliding", Create(b"x", TEXT, lifetime=Lifetime(ttl_secs=1000)), ignore)
        for id in (ID, "sound"):
            manager.put(id, requests.parse_config(PULL), URL)
        await durable(engine)
        engine.append(engine.find("a"), Append(b"x", TEXT), ignore)
        async with asyncio.timeout(DEADLINE_SECS):
            while engine.find("wakes").visible.messages < 2:
                await asyncio.sleep(0.001)
        manager.claim(ID, "worker")
        await durable(engine)
        await manager.stop()
    storage = open_storage(mode, directory, asyncio.get_running_loop())
    storage.start(ignore, ignore)
    for _ in storage.recover():
        pass
    names = list(storage.take_documents())
    storage.close()
    return names


@pytest.fixture(scope="module", params=DURABLE_MODES)
def sound(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    directory = tmp_path_factory.mktemp("sound") / "data"
    names = asyncio.run(make(request.param, directory))
    assert {*SUBSCRIPTION, *KEYS, "windows/ran"} < set(names)
    return request.param, directory


def spoiled(
    sound: tuple[str, Path],
    directory: Path,
    documents: dict[str, bytes | None],
    test: Callable[[str], Awaitable[None]],
) -> None:
    mode, original = sound

    async def main() -> None:
        storage = open_storage(mode, directory, asyncio.get_running_loop())
        engine = Engine(storage, SystemClock())
        engine.keep(documents)
        await durable(engine)
        storage.close()  # not the engine, which would write down all windows
        await test(mode)

    shutil.copytree(original, directory)
    asyncio.run(main())


@pytest.mark.parametrize("name", SUBSCRIPTION)
@pytest.mark.parametrize("value", GARBAGE)
def test_a_subscription_that_cannot_be_read_is_set_aside_and_the_others_are_served(
    sound: tuple[str, Path],
    tmp_path: Path,
    name: str,
    value: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = tmp_path / "data"

    async def test(mode: str) -> None:
        findings = await start_findings(directory)
        assert [finding for finding in findings if repr(f"subscriptions/{ID}") in finding]
        with opened(mode, directory) as (engine, manager):
            manager.start()
            assert "a stored document cannot be read" in caplog.text
            assert manager.get("sound")["status"] == "active"
            for request in (manager.get, lambda id: manager.claim(id, "worker")):
                with pytest.raises(SubscriptionRefused) as refused:
                    request(ID)
                assert refused.value.code is Code.SUBSCRIPTION_SET_ASIDE
            with pytest.raises(SubscriptionRefused, match="delete it and create it again"):
                manager.put(ID, requests.parse_config(PULL), URL)
            assert manager.degraded_count == 1
            manager.delete(ID)
            manager.put(ID, requests.parse_config(PULL), URL)
            assert manager.get(ID)["status"] == "active"
            await durable(engine)
            await manager.stop()
        assert await start_findings(directory) == []

    spoiled(sound, directory, {name: value}, test)


@pytest.mark.parametrize("value", GARBAGE)
def test_a_window_that_cannot_be_read_begins_anew(
    sound: tuple[str, Path], tmp_path: Path, value: bytes
) -> None:
    directory = tmp_path / "data"

    async def test(mode: str) -> None:
        assert len(await start_findings(directory)) == 2
        with opened(mode, directory) as (engine, _):
            assert engine.find("sliding").visible.messages == 1
            assert set(engine.aside.documents) == set(documents)
        assert await start_findings(directory) == []

    mode, original = sound
    window = f"windows/{sliding_id(mode, original):016x}"
    documents: dict[str, bytes | None] = {"windows/ran": value, window: value}
    spoiled(sound, directory, documents, test)


def sliding_id(mode: str, directory: Path) -> int:
    async def main() -> int:
        with opened(mode, directory) as (engine, _):
            return engine.find("sliding").state.id

    return asyncio.run(main())


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("value", [None, b"short"])
def test_a_key_that_is_lost_is_named_and_not_made_anew(
    sound: tuple[str, Path], tmp_path: Path, name: str, value: bytes | None
) -> None:
    directory = tmp_path / "data"

    async def test(mode: str) -> None:
        with pytest.raises(StoredBytesUnreadable, match=f"the document {name}"):  # noqa: SIM117
            with opened(mode, directory):
                pass
        [finding] = await start_findings(directory)
        assert f"the document {name}" in finding

    spoiled(sound, directory, {name: value}, test)
