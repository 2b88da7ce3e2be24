"""Other web pages in a real browser: what they can do to a server on the browser's own machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from headrace.testing.server_process import ServerProcess
from tests.conftest import Serve
from tests.ui import chromium
from tests.ui.conftest import ARGUMENTS, PATIENCE_MS

pytestmark = pytest.mark.slow
TEXT = {"Content-Type": "text/plain"}
# The name belongs to somebody else and leads here: what DNS rebinding comes to.
REBOUND = "--host-resolver-rules=MAP evil.example 127.0.0.1"
# Each way a page has, and whether the browser let the page see an answer.
ATTACKS = """async (url) => {
  const tried = {}
  const seen = async (name, attempt) => {
    try { tried[name] = await attempt() } catch { tried[name] = "kept from the page" }
  }
  const text = { "Content-Type": "text/plain" }
  await seen("read", async () => (await fetch(url)).text())
  const append = { method: "POST", body: "evil", headers: text }
  await seen("append", async () => (await fetch(url, append)).status)
  await seen("blind append", async () =>
    (await fetch(url, { method: "POST", mode: "no-cors", body: "evil" })).type)
  const create = { method: "PUT", headers: text }
  await seen("create", async () => (await fetch(url + "-2", create)).status)
  await seen("delete", async () => (await fetch(url, { method: "DELETE" })).status)
  await seen("follow", () => new Promise((done, fail) => {
    const events = new EventSource(url + "?offset=-1&live=sse")
    events.onopen = () => { events.close(); done("open") }
    events.onerror = () => { events.close(); fail() }
  }))
  await seen("embed", () => new Promise((done, fail) => {
    const frame = document.createElement("script")
    frame.src = url
    frame.onload = () => done("ran")
    frame.onerror = fail
    document.head.append(frame)
  }))
  return tried
}"""
KEPT = "kept from the page"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = chromium.find()
    if executable is None:
        pytest.skip(chromium.MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable,
            env={**chromium.environment()},
            args=[*ARGUMENTS, REBOUND],
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of another origin on this machine, as a link in a mail might open."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as site:
        thread = threading.Thread(target=site.serve_forever, args=(0.01,))
        thread.start()
        context = browser.new_context()
        context.set_default_timeout(PATIENCE_MS)
        opened = context.new_page()
        opened.goto(f"http://127.0.0.1:{site.server_port}/")
        yield opened
        context.close()
        site.shutdown()
        thread.join()


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>somebody else's</title>")

    def log_message(self, format: str, *args: object) -> None:
        """Not news."""


def attacked(page: Page, server: ServerProcess, path: str) -> dict[str, Any]:
    httpx.put(server.url + path, headers=TEXT, content=b"kept").raise_for_status()
    tried: dict[str, Any] = page.evaluate(ATTACKS, server.url + path)
    return tried


def test_a_page_of_another_origin_reads_and_changes_nothing(
    page: Page, server: ServerProcess, stream: str
) -> None:
    tried = attacked(page, server, stream)
    # A simple POST is sent without asking first, so that here it is the server that refuses.
    assert set(tried.values()) == {KEPT}, tried
    assert httpx.get(server.url + stream).text == "kept"
    assert httpx.head(server.url + stream + "-2").status_code == 404


def test_the_same_page_does_all_of_it_where_every_page_may(
    page: Page, serve: Serve, stream: str
) -> None:
    """Else the test above would show nothing."""
    server = serve(DS_HTTP__CORS_ORIGINS="*")
    tried = attacked(page, server, stream)
    assert (tried["read"], tried["append"], tried["create"]) == ("kept", 204, 201)
    assert tried["delete"] == 204
    assert httpx.head(server.url + stream).status_code == 404


def test_a_page_whose_name_leads_here_is_not_answered(page: Page, server: ServerProcess) -> None:
    answer = page.goto(f"http://evil.example:{server.port}/ui/")
    assert answer is not None
    assert answer.status == 421
    assert "server.allowed_hosts" in answer.text()
