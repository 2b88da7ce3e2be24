"""What only the awaited client has: tasks that are cancelled, readers that another task closes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headrace.client import AsyncClient, AsyncReader, Live
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS
from tests.client.test_reading import LIVE


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, DEADLINE_SECS))


async def waiting(reader: AsyncReader, received: list[str]) -> asyncio.Task[None]:
    """A task that follows the reader, once it has the first text and goes on."""
    arrived = asyncio.Event()

    async def follow() -> None:
        async for text in reader.text():
            received.append(text)
            arrived.set()

    task = asyncio.create_task(follow())
    await arrived.wait()
    return task


@pytest.mark.parametrize("live", LIVE)
def test_a_reader_can_be_closed_by_another_task(
    live: Live, server: ServerProcess, stream: str
) -> None:
    async def main() -> None:
        async with AsyncClient(server.url) as client:
            target = client.stream(stream)
            await target.create("text/plain", data="x")
            received: list[str] = []
            reader = target.read(live=live)
            task = await waiting(reader, received)
            await asyncio.gather(reader.aclose(), reader.aclose())
            await task
            assert task.cancelling() == 0, "closing is not cancelling"
            await reader.aclose()
            assert received == ["x"]
            assert [chunk async for chunk in reader] == [], "it stays closed"

    run(main())


@pytest.mark.parametrize("live", LIVE)
def test_whoever_asks_for_more_while_another_task_closes_is_at_the_end(
    live: Live, server: ServerProcess, stream: str
) -> None:
    async def main() -> None:
        async with AsyncClient(server.url) as client:
            target = client.stream(stream)
            await target.create("application/json")
            await target.append_json({"type": "t", "key": "k", "operation": "set", "value": 1})
            reader = target.read(live=live)
            view = target.state()
            chunks, updates = aiter(reader), view.updates(live=live)
            await anext(chunks)
            await anext(updates)
            closing = [asyncio.create_task(followed.aclose()) for followed in (reader, view)]
            await asyncio.sleep(0)
            assert [chunk async for chunk in chunks] == []
            assert [update async for update in updates] == []
            await asyncio.gather(*closing)

    run(main())


@pytest.mark.parametrize("live", LIVE)
def test_cancelling_a_follower_lets_the_client_go_on(
    live: Live, server: ServerProcess, stream: str
) -> None:
    async def main() -> None:
        async with AsyncClient(server.url, connections_max=1) as client:
            target = client.stream(stream)
            await target.create("text/plain", data="x")
            for _ in range(3):
                task = await waiting(target.read(live=live), [])
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert (await target.head()).content_type == "text/plain"

    run(main())


@pytest.mark.parametrize("live", LIVE)
def test_leaving_the_block_closes_a_reader_that_is_not_at_its_end(
    live: Live, server: ServerProcess, stream: str
) -> None:
    async def main() -> None:
        async with AsyncClient(server.url, connections_max=1) as client:
            target = client.stream(stream)
            await target.create("text/plain", data="x")
            async with target.read(live=live) as reader:
                async for chunk in reader:
                    assert chunk.data == b"x"
                    break
            assert await target.read_bytes() == b"x"
            async with target.read(live=live):
                pass

    run(main())


def test_a_view_that_is_left_in_the_middle_can_be_closed(
    server: ServerProcess, stream: str
) -> None:
    async def main() -> None:
        async with AsyncClient(server.url, connections_max=1) as client:
            target = client.stream(stream)
            await target.create("application/json")
            await target.append_json({"type": "t", "key": "k", "operation": "set", "value": 1})
            view = target.state()
            await view.aclose()
            view = target.state()
            async for _ in view.updates(live="sse"):
                break
            await view.aclose()
            assert view.state.get("t", "k") == 1
            assert not (await target.head()).closed, "its connection is free again"

    run(main())


def test_a_timeout_around_a_follower_is_a_timeout(server: ServerProcess, stream: str) -> None:
    async def main() -> None:
        async with AsyncClient(server.url) as client:
            target = client.stream(stream)
            await target.create("text/plain")

            async def follow() -> None:
                async with asyncio.timeout(0.05):
                    async for _ in target.read(live="sse"):
                        pass

            with pytest.raises(TimeoutError):
                await follow()

    run(main())
