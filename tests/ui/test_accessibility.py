"""The accessibility rules of axe-core hold in every main view, in light and in dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import Open
from tests.ui.helpers import append, await_live, create, fresh, lines, place, tree_row

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not AXE.exists(), reason="axe-core is not installed: run `make test` (needs Node 20)"
    ),
]


def assert_accessible(page: Page, *without: str) -> None:
    if page.evaluate("() => window.axe === undefined"):
        page.evaluate(AXE.read_text("utf-8"))
    options = {"runOnly": TAGS, "rules": {rule: {"enabled": False} for rule in without}}
    result = page.evaluate("options => axe.run(document, options)", options)
    assert len(result["passes"]) > 10, "axe has looked at something"
    wrong = [
        f"{violation['id']}: {violation['help']}: {node['html'][:160]} {node['failureSummary']}"
        for violation in result["violations"]
        for node in violation["nodes"][:3]
    ]
    assert wrong == [], "\n".join(wrong)


def show_overview(page: Page) -> None:
    page.keyboard.press("o")
    expect(page.get_by_role("region", name="Throughput")).to_be_visible()


def show_opened_message(page: Page) -> None:
    lines(page).first.click()
    expect(page.locator(".payload")).to_be_visible()


def show_search(page: Page) -> None:
    page.get_by_label("Search messages").fill("ann")
    expect(page.locator("mark").first).to_be_visible()


def show_state(page: Page) -> None:
    page.get_by_role("button", name="State", exact=True).click()
    expect(page.get_by_role("table", name="State").get_by_role("row")).to_have_count(2)


def show_state_row(page: Page) -> None:
    page.get_by_role("button", name="1", exact=True).click()
    expect(page.get_by_label("Value", exact=True)).to_be_visible()


def show_transcript(page: Page) -> None:
    page.get_by_role("button", name="Transcript", exact=True).click()
    page.locator(".turn summary").first.click()
    expect(page.locator(".turn .payload").first).to_be_visible()


def show_wrong_filter(page: Page) -> None:
    page.keyboard.press("f")
    page.get_by_label("Search messages").fill("$.role ==")
    expect(page.locator(".find-problem")).to_contain_text("Expected a value")


def show_bucket(page: Page) -> None:
    page.get_by_role("tree").get_by_text("/accessible").click()
    streams = page.get_by_role("table", name="Streams of the bucket")
    expect(streams.get_by_role("row")).to_have_count(2)


def show_create(page: Page) -> None:
    page.get_by_role("button", name="New").click()
    expect(page.get_by_role("dialog")).to_be_visible()


def show_fork(page: Page) -> None:
    page.get_by_role("button", name="Fork", exact=True).click()
    expect(page.get_by_role("dialog", name="Fork")).to_be_visible()


def show_token(page: Page) -> None:
    page.get_by_role("button", name="Token", exact=True).click()
    expect(page.get_by_role("dialog", name="Token")).to_be_visible()


def show_keys(page: Page) -> None:
    page.get_by_role("button", name="Keys").click()
    expect(page.get_by_role("dialog")).to_be_visible()


def show_paused(page: Page) -> None:
    page.keyboard.press("p")
    expect(page.locator("button.live")).to_contain_text("Paused")


VIEWS = (
    show_opened_message,
    show_search,
    show_state,
    show_state_row,
    show_transcript,
    show_wrong_filter,
    show_paused,
    show_create,
    show_fork,
    show_token,
    show_keys,
    show_overview,
    show_bucket,
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_accessible(open_ui: Open, http: httpx.Client, scheme: str) -> None:
    name = fresh("axe")
    create(http, name)
    change = '{"type":"user","key":"1","value":{"name":"Ann"},"headers":{"operation":"insert"}}'
    call = '{"type":"tool-input-available","toolCallId":"c","toolName":"find","input":{"a":1}}'
    append(http, name, change, change, call)
    for path in ("/accessible", "/accessible/stream"):
        http.put(path)
    page = open_ui(place(name), color_scheme=scheme)
    await_live(page)
    expect(page.locator("[data-fact=tail]")).to_be_visible()
    expect(tree_row(page, name)).to_be_visible()
    assert_accessible(page)
    views: tuple[Callable[[Page], None], ...] = VIEWS
    for show in views:
        show(page)
        assert_accessible(page)
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phones_views_are_accessible(open_ui: Open, http: httpx.Client, scheme: str) -> None:
    name = fresh("axe-phone")
    create(http, name, "text/plain")
    append(http, name, "hello", content_type="text/plain")
    page = open_ui(place(name), viewport={"width": 390, "height": 780}, color_scheme=scheme)
    await_live(page)
    assert_accessible(page)
    # The panes take turns here, and the other two are landmarks of their own.
    page.get_by_role("button", name="Details", exact=True).click()
    assert_accessible(page, "landmark-one-main")
    page.get_by_role("button", name="Back to the stream").click()
    page.get_by_role("button", name="Back to the list").click()
    assert_accessible(page, "landmark-one-main")
