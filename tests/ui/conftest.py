"""A real Chromium for the tests of the stream browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS
from tests.conftest import stop_cleanly
from tests.ui import chromium

ARGUMENTS = ("--no-sandbox", "--disable-background-networking", "--disable-gpu", "--no-first-run")
PATIENCE_MS = 3 * DEADLINE_SECS * 1000  # a browser beside a server on two busy cores
LONG_POLLS_END_SOON = {"DS_SERVER__LONG_POLL_TIMEOUT_SECS": "0.5"}
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server without the streams of other tests: the page shows only what fits."""
    process = ServerProcess(LONG_POLLS_END_SOON, cwd=str(tmp_path_factory.mktemp("server")))
    process.start()
    yield process
    stop_cleanly(process)


# A module's scope, not the session's: while Playwright runs, its thread has a running event loop,
# and other tests want to start their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = chromium.find()
    if executable is None:
        pytest.skip(chromium.MISSING)
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable,
            env={**chromium.environment()},
            args=[*ARGUMENTS],
        )
        yield browser
        browser.close()


@pytest.fixture
def open_ui(browser: Browser, server: ServerProcess) -> Iterator[Open]:
    """Open the browser's page at a place (`#/stream/a`), in a window of its own.

    A page that throws, or that its own policy had to stop, fails the test.
    """
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def open(place: str = "", url: str = server.url, **options: object) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1360, "height": 800}, **options})  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda said: faults.append(said.text) if is_fault(said.text) else None)
        page.goto(f"{url}/ui/{place}")
        if not place.endswith(".json"):
            page.locator("#app > header, #app > .notice").first.wait_for()
        return page

    yield open
    for context in contexts:
        context.close()
    assert faults == []


def is_fault(said: str) -> bool:
    return "Content Security Policy" in said or "TrustedHTML" in said or "Uncaught" in said
