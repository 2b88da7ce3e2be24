"""The stream browser in the world: restarts, mount paths, phones."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.conftest import stop_cleanly
from tests.http.helpers import client_of
from tests.http.uvicorn import MOUNT, Uvicorn, assert_clean
from tests.ui.conftest import Open
from tests.ui.helpers import (
    ROOT,
    append,
    await_live,
    create,
    fresh,
    lines,
    live_button,
    place,
    tree_row,
)

pytestmark = pytest.mark.slow


def test_a_page_goes_on_where_it_was_when_the_server_returns(open_ui: Open, tmp_path: Path) -> None:
    env = {"DS_STORAGE__MODE": "file-durable", "DS_STORAGE__DATA_DIR": "streams"}
    name, born_away = fresh("restarted"), fresh("born-away")
    first = ServerProcess(env, cwd=str(tmp_path))
    first.start()
    with client_of(first) as http:
        create(http, name)
        append(http, name, "1", "2")
    page = open_ui(place(name), first.url)
    await_live(page)
    expect(lines(page)).to_have_count(2)
    first.kill()
    expect(page.locator(".presence")).to_contain_text("Server away")
    expect(live_button(page)).to_contain_text("Server away")
    second = ServerProcess(env, ["--port", str(first.port)], cwd=str(tmp_path))
    second.start()
    try:
        with client_of(second) as http:
            append(http, name, "3", "4")
            create(http, born_away)
            expect(page.locator(".presence")).to_contain_text("Connected")
            expect(page.locator(".preview")).to_have_text(["1", "2", "3", "4"])
            await_live(page)
            append(http, name, "5")
            expect(page.locator(".preview")).to_have_text(["1", "2", "3", "4", "5"])
            expect(tree_row(page, born_away)).to_be_visible()
    finally:
        page.goto("about:blank")
        stop_cleanly(second)


def test_a_server_without_a_memory_is_read_anew(open_ui: Open, tmp_path: Path) -> None:
    name, gone = fresh("anew"), fresh("gone")
    first = ServerProcess(cwd=str(tmp_path))
    first.start()
    with client_of(first) as http:
        create(http, gone)
        create(http, name)
        append(http, name, '"old"', '"older"')
    page = open_ui(place(name), first.url)
    await_live(page)
    expect(tree_row(page, gone)).to_be_visible()
    first.kill()
    expect(page.locator(".presence")).to_contain_text("Server away")
    second = ServerProcess(args=["--port", str(first.port)], cwd=str(tmp_path))
    second.start()
    try:
        with client_of(second) as http:
            create(http, name)
            append(http, name, '"new"')
            expect(page.locator(".preview")).to_have_text(['"new"'])
            expect(tree_row(page, gone)).to_have_count(0)
            expect(tree_row(page, name)).to_be_visible()
    finally:
        page.goto("about:blank")
        stop_cleanly(second)


def test_it_works_below_the_path_of_an_asgi_mount(open_ui: Open, tmp_path: Path) -> None:
    uvicorn = Uvicorn(tmp_path / "log", DS_SERVER__SSE_RECONNECT_INTERVAL_SECS="2")
    page = open_ui("", uvicorn.url + MOUNT)
    name = fresh("mounted")
    page.get_by_role("button", name="New").click()
    page.get_by_label("Name", exact=False).first.fill(name)
    page.get_by_role("button", name="Create", exact=True).click()
    await_live(page)
    page.get_by_label("Message to append").fill("1")
    page.get_by_role("button", name="Append", exact=True).click()
    expect(lines(page)).to_have_count(1)
    page.get_by_role("button", name="Fork", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Fork", exact=True).click()
    expect(page.get_by_role("heading", level=1, name=f"{name}-fork")).to_be_visible()
    expect(tree_row(page, name)).to_be_visible()
    page.goto("about:blank")
    assert_clean(uvicorn, uvicorn.stop())


def test_a_phone_shows_one_pane_at_a_time(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("phone")
    create(http, name)
    append(http, name, '{"n": 1}')
    page = open_ui(viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True)
    tree, messages = page.get_by_role("tree"), page.get_by_role("list", name="Messages")
    expect(tree).to_be_visible()
    page.get_by_label("Search streams").fill(name)
    tree_row(page, name).tap()
    expect(messages).to_be_visible()
    expect(tree).to_be_hidden()
    await_live(page)
    page.get_by_role("button", name="Details", exact=True).tap()
    expect(page.get_by_role("complementary", name="Details")).to_be_visible()
    expect(messages).to_be_hidden()
    page.get_by_role("button", name="Back to the stream").tap()
    page.get_by_role("button", name="Back to the list").tap()
    expect(tree).to_be_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_a_page_out_of_sight_lets_go_of_its_connections_and_catches_up(
    open_ui: Open, http: httpx.Client
) -> None:
    name = fresh("hidden")
    create(http, name)
    page = open_ui(place(name))
    await_live(page)

    def readers() -> int:
        return int(http.get(f"{ROOT}/__ds/streams/{name}").json()["live_readers"])

    def show(state: str) -> None:
        """The page is told as a browser would; a headless one never hides its pages."""
        page.evaluate(
            """state => {
              const hidden = { value: state === "hidden", configurable: true }
              Object.defineProperty(document, "hidden", hidden)
              document.dispatchEvent(new Event("visibilitychange"))
            }""",
            state,
        )

    eventually(lambda: readers() == 1, "the page follows the stream")
    show("hidden")
    eventually(lambda: readers() == 0, "the page has let go")
    append(http, name, "1", "2")
    show("visible")
    expect(page.locator(".preview")).to_have_text(["1", "2"])
    eventually(lambda: readers() == 1, "the page follows again")
