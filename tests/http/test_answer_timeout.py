"""A request whose answer got lost inside is answered 504 in time, and its connection closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.config import Config
from headrace.engine.engine import AppendOutcome, Engine
from headrace.engine.stream_runtime import Stream
from headrace.http.asgi import Message, Scope, create_app
from headrace.protocol.requests import Append
from headrace.testing.in_process import InProcessServer
from headrace.testing.raw_http import RawConnection
from headrace.testing.waiting import DEADLINE_SECS

STREAM = "/v1/stream/a"
TEXT = "text/plain"
_DEFAULTS = Config()
CONFIG = replace(
    _DEFAULTS,
    server=replace(_DEFAULTS.server, port=0, long_poll_timeout_secs=1),
    http=replace(_DEFAULTS.http, answer_timeout_secs=1),
)
Reply = Callable[[AppendOutcome], None]


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """The answers to appends of `lost`, which nobody gives unless the test does."""
    found: list[Callable[[], None]] = []
    append = Engine.append

    def lose(self: Engine, stream: Stream, command: Append, reply: Reply) -> None:
        if command.body != b"lost":
            append(self, stream, command, reply)
            return
        append(self, stream, command, lambda outcome: found.append(lambda: reply(outcome)))

    monkeypatch.setattr(Engine, "append", lose)
    return found


def test_a_lost_answer_is_504_and_the_connection_closes(
    lost: list[Callable[[], None]], caplog: pytest.LogCaptureFixture
) -> None:
    with InProcessServer(CONFIG) as server:
        port = int(server.url.rpartition(":")[2])
        with RawConnection(port) as client, RawConnection(port) as other:
            client.request("PUT", STREAM, Content_Type=TEXT)
            answer = client.request("POST", STREAM, b"lost", Content_Type=TEXT)
            assert answer.status == 504
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["connection"] == "close"
            assert answer.json()["type"] == "urn:headrace:problem:answer-timeout"
            assert client.is_at_end()
            assert other.request("POST", STREAM, b"x", Content_Type=TEXT).status == 204
            lost[0]()
            assert other.request("HEAD", STREAM).headers["stream-next-offset"].endswith("5")
    assert [r.levelno for r in caplog.records if "no answer" in r.message] == [logging.ERROR]


async def ask(app: Callable[..., object], method: str, body: bytes = b"") -> list[Message]:
    """What a mounted application sends; the client stays until it has everything."""
    sent: list[Message] = []
    received = [{"type": "http.request", "body": body}]
    scope: Scope = {
        "type": "http",
        "method": method,
        "path": STREAM,
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", TEXT.encode())],
        "client": ("127.0.0.1", 1),
    }

    async def receive() -> Message:
        if received:
            return received.pop()
        await asyncio.Event().wait()
        raise AssertionError("the client stays")

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)  # type: ignore[misc]
    return sent


def test_a_lost_answer_of_a_mounted_application_is_504(lost: list[Callable[[], None]]) -> None:
    async def main() -> None:
        app = create_app(CONFIG)
        async with asyncio.timeout(DEADLINE_SECS):
            await ask(app, "PUT")
            sent = await ask(app, "POST", b"lost")
        assert sent[0]["status"] == 504
        assert b"answer-timeout" in sent[1]["body"]
        lost[0]()
        assert len(sent) == 2, "a late answer reaches nobody"
        await app.aclose()

    asyncio.run(main())


def test_a_long_poll_of_a_mounted_application_has_its_own_time() -> None:
    async def main() -> None:
        app = create_app(CONFIG)
        async with asyncio.timeout(DEADLINE_SECS):
            await ask(app, "PUT")
            sent = await poll(app)
        assert sent[0]["status"] == 204
        await app.aclose()

    async def poll(app: Callable[..., object]) -> list[Message]:
        def with_query(scope: Scope, *rest: object) -> object:
            return app({**scope, "query_string": b"offset=now&live=long-poll"}, *rest)

        return await ask(with_query, "GET")

    asyncio.run(main())
