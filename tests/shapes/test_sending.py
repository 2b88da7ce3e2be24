"""Answers of the Shape API to clients that take nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.types import Message

from headrace.shapes import sending
from headrace.shapes.sending import WINDOW_BYTES, Held, ImpatientResponse

BODY = bytes(range(256)) * 4096


async def receive() -> Message:
    """A client that stays."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def response(held: Held) -> ImpatientResponse:
    return ImpatientResponse(held.windows(BODY), headers={"content-length": str(len(BODY))})


async def run(answer: ImpatientResponse, taken: int) -> list[Message]:
    """What a client gets that takes so many messages, and then nothing."""
    messages: list[Message] = []

    async def send(message: Message) -> None:
        if len(messages) == taken:
            await asyncio.Event().wait()
        messages.append(message)

    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}}
    await answer(scope, receive, send)
    return messages


def test_a_body_is_sent_whole_in_windows_and_counts_until_it_is_taken() -> None:
    held = Held()
    messages = asyncio.run(run(response(held), -1))
    parts = [message["body"] for message in messages[1:]]
    assert b"".join(parts) == BODY
    assert max(map(len, parts)) == WINDOW_BYTES
    assert held.bytes == 0


def test_a_client_that_takes_nothing_is_left_and_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "STALLED_SECS", 0.01)
    held = Held()

    async def stall() -> None:
        messages = await run(response(held), 3)
        assert len(messages) == 3
        await asyncio.sleep(0)  # for what it left behind to be closed

    asyncio.run(stall())
    assert held.bytes == 0


def test_another_fault_is_not_taken_for_a_slow_client() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError):
        asyncio.run(run(ImpatientResponse(broken()), -1))


def test_past_its_bound_nothing_more_is_begun() -> None:
    held, seen = Held(bytes_max=10), []
    with held.holding(10):
        seen.append(held.is_exceeded)
        with held.holding(1):
            seen.append(held.is_exceeded)
    assert [*seen, held.is_exceeded] == [False, True, False]
