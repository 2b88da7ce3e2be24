"""The ASGI application stops for the same reasons as the server, and says so to its host."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.config import Config
from headrace.engine.housekeeping import Housekeeping
from headrace.http.asgi import Headrace, Message, Scope, create_app

DEADLINE_SECS = 30.0
_DEFAULTS = Config()
CONFIG = replace(_DEFAULTS, server=replace(_DEFAULTS.server, drain_secs=0.0))


def scope(path: str) -> Scope:
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
    }


async def status_of(app: Headrace, path: str) -> int:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope(path), receive, send)
    status: int = sent[0]["status"]
    return status


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_SECS):
            await work()

    asyncio.run(bounded())


@pytest.mark.faults
def test_a_background_task_that_dies_stops_the_application_and_calls_its_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(housekeeping: Housekeeping) -> None:
        raise RuntimeError("a defect of the sweep")

    async def work() -> None:
        reasons: list[BaseException] = []
        has_failed = asyncio.Event()

        def on_failure(reason: BaseException) -> None:
            reasons.append(reason)
            has_failed.set()

        app = create_app(CONFIG, on_failure=on_failure)
        assert await status_of(app, "/readyz") == 200
        monkeypatch.setattr(Housekeeping, "run", broken)
        await has_failed.wait()
        assert [str(reason) for reason in reasons] == ["a defect of the sweep"]
        assert await status_of(app, "/readyz") == 503
        assert await status_of(app, "/v1/stream/a") == 503
        await app.aclose()

    run(work)


def test_an_application_that_is_closed_starts_again_with_its_next_request() -> None:
    async def work() -> None:
        failures: list[BaseException] = []
        app = create_app(CONFIG, on_failure=failures.append)
        for _ in range(2):
            assert await status_of(app, "/readyz") == 200
            await app.aclose()
        assert failures == []

    run(work)


def test_an_application_that_cannot_start_says_why_and_frees_its_directory(tmp_path: Path) -> None:
    config = replace(
        CONFIG, storage=replace(CONFIG.storage, mode="file-durable", data_dir=tmp_path)
    )

    async def work() -> None:
        app = create_app(config)
        assert await status_of(app, "/readyz") == 200
        await app.aclose()
        current = tmp_path / "catalog" / "current"
        sound = current.read_bytes()
        current.write_bytes(sound[:-1] + b"?")
        for _ in range(2):  # the second time it must not meet its own lock
            assert await status_of(app, "/readyz") == 500
        current.write_bytes(sound)
        assert await status_of(app, "/readyz") == 200
        await app.aclose()

    run(work)
