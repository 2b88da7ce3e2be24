"""Somebody new at the page: an empty server, a name that is not there, dialogs, the address `/`."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from headrace.testing.server_process import ServerProcess
from tests.conftest import Serve
from tests.http.helpers import problem_of
from tests.http.uvicorn import MOUNT, Uvicorn, assert_clean
from tests.ui.conftest import Open
from tests.ui.helpers import (
    ROOT,
    append,
    await_live,
    compact,
    create,
    fresh,
    lines,
    live_button,
    place,
    tree_row,
)

pytestmark = pytest.mark.slow
PAGE = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_a_browser_at_the_root_gets_the_page_and_a_client_gets_404(http: httpx.Client) -> None:
    led = http.get("/", headers=PAGE)
    assert (led.status_code, led.headers["location"]) == (307, "ui/")
    assert led.headers["vary"] == "Accept"
    assert problem_of(http.get("/")) == "not-found"
    assert problem_of(http.get("/", headers={"Accept": "application/json"})) == "not-found"
    assert problem_of(http.put("/", headers=PAGE)) == "method-not-allowed"


def test_the_root_leads_nowhere_without_the_page(serve: Serve) -> None:
    without = serve(DS_SERVER__UI="false")
    assert problem_of(httpx.get(f"{without.url}/", headers=PAGE)) == "not-found"


def test_the_root_of_a_mount_leads_to_the_page_of_the_mount(tmp_path: Path) -> None:
    uvicorn = Uvicorn(tmp_path / "log")
    page = httpx.get(f"{uvicorn.url}{MOUNT}/", headers=PAGE, follow_redirects=True)
    assert (page.status_code, page.url.path) == (200, f"{MOUNT}/ui/")
    assert_clean(uvicorn, uvicorn.stop())


def test_an_empty_server_shows_a_button_and_a_command_that_make_a_stream(
    open_ui: Open, serve: Serve
) -> None:
    server = serve(DS_SERVER__BUCKET_ROOT="/b")
    page = open_ui("../", server.url)
    first = page.get_by_role("region", name="First steps")
    expect(first).to_be_visible()
    assert page.url == f"{server.url}/ui/"
    expect(page.locator(".list-empty")).to_contain_text("No streams yet")
    first.get_by_role("button", name="Create a stream", exact=True).click()
    expect(page.get_by_role("dialog", name="New stream")).to_be_visible()
    page.keyboard.press("Escape")
    commands = first.locator("code").all_text_contents()
    for command in commands[:2]:
        subprocess.run([*shlex.split(command), "-sS", "--fail"], check=True)
    assert httpx.get(f"{server.url}{ROOT}/hello").json() == [{"hello": "world"}, {"and": "again"}]
    expect(tree_row(page, "hello")).to_be_visible()
    expect(first).to_be_hidden()


def test_a_missing_stream_and_a_missing_bucket_offer_to_make_them(open_ui: Open) -> None:
    name, bucket = fresh("missing"), fresh("missing").replace("/", "-")
    page = open_ui(place(name))
    page.get_by_role("button", name="Create this stream").click()
    expect(page.get_by_label("Name", exact=False).first).to_have_value(name)
    page.keyboard.press("Enter")
    await_live(page)
    page.evaluate("hash => { location.hash = hash }", place(f"/{bucket}/doc"))
    page.get_by_role("button", name=f"Create the bucket {bucket}").click()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Create this stream").click()
    page.keyboard.press("Enter")
    await_live(page)
    expect(tree_row(page, f"/{bucket}/doc")).to_be_visible()


def test_dialogs_begin_in_the_first_field_and_questions_at_the_safe_answer(
    open_ui: Open, http: httpx.Client
) -> None:
    name = fresh("focus")
    create(http, name)
    page = open_ui(place(name))
    await_live(page)
    page.keyboard.press("n")
    page.keyboard.type("typed")
    expect(page.get_by_role("dialog").locator("[name=name]")).to_have_value("ui/typed")
    page.keyboard.press("Escape")
    for button, field in (("Token", "token"), ("Create a bucket", "bucket"), ("Fork", "name")):
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.get_by_role("dialog").locator(f"[name={field}]")).to_be_focused()
        page.keyboard.press("Escape")
    for button in ("Close stream", "Delete stream"):
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_focused()
        page.keyboard.press("Escape")


def test_a_jump_beyond_the_end_keeps_what_is_shown_and_says_so(
    open_ui: Open, http: httpx.Client
) -> None:
    name = fresh("beyond")
    create(http, name)
    append(http, name, compact([{"n": n} for n in range(30)]))
    page = open_ui(place(name))
    await_live(page)
    field = page.get_by_label("Jump to an offset or a message number")
    for wanted, said in (
        ("5000", "5,000 is beyond the end of the stream: the last message is number 29."),
        (f"{5000:016d}_{90000:016d}", "past the tail"),
    ):
        field.fill(wanted)
        field.press("Enter")
        expect(page.locator(".toast").last).to_contain_text(said)
        expect(page.locator(".preview", has_text='{"n":29}')).to_be_visible()
    append(http, name, '{"n":30}')
    expect(page.locator(".preview", has_text='{"n":30}')).to_be_visible()


def test_a_stopped_server_leaves_no_stream_marked_as_open(open_ui: Open, tmp_path: Path) -> None:
    server = ServerProcess(cwd=str(tmp_path))
    server.start()
    name = fresh("dots")
    httpx.put(f"{server.url}{ROOT}/{name}").raise_for_status()
    page = open_ui("", server.url)
    row = tree_row(page, name)
    expect(row.get_by_role("img", name="open")).to_be_visible()
    server.kill()
    expect(row.get_by_role("img", name="unknown")).to_be_visible()
    page.goto("about:blank")


def test_who_is_not_signed_in_is_not_called_connected(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("guarded")
    create(http, name)

    def guard(route: Route) -> None:
        if route.request.headers.get("authorization") == "Bearer right":
            route.continue_()
        else:
            route.fulfill(status=401, body="Jwt is missing", content_type="text/plain")

    page = open_ui("settings.json")
    page.route("**/v1/stream/**", guard)
    page.goto(f"{http.base_url}/ui/{place(name)}".replace("//ui", "/ui"))
    presence = page.locator(".presence")
    expect(presence).to_have_text("Not signed in")
    page.get_by_label("Bearer token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("This token was refused")
    expect(presence).to_have_text("Token refused")
    page.get_by_label("Bearer token").fill("right")
    page.keyboard.press("Enter")
    await_live(page)
    expect(presence).to_have_text("Connected")


def formatted(page: Page, name: str, *values: float) -> list[str]:
    return [
        str(page.evaluate(f"async n => (await import('./format.js')).{name}(n)", value))
        for value in values
    ]


def test_numbers_change_their_unit_after_rounding(open_ui: Open) -> None:
    page = open_ui()
    assert formatted(page, "seconds", 0.0009994, 0.0009996, 0.99996, 0.0099996, 100, 7300) == [
        *("999 µs", "1.00 ms", "1.00 s", "10.0 ms", "100 s", "2.0 h")
    ]
    assert formatted(page, "bytes", 1023, 1024**2 - 1, 100 * 1024, 99.96 * 1024) == [
        *("1023 B", "1.0 MiB", "100 KiB", "100 KiB")
    ]
    assert formatted(page, "rate", 0, 0.996, 9.97, 9999.7, 99_960) == [
        *("0", "1.0", "10", "10.0k", "100k")
    ]


def test_the_rate_of_a_paused_stream_is_that_between_two_polls(
    open_ui: Open, http: httpx.Client
) -> None:
    """A poll every two seconds and a sample every second made 0, 40, 0, 40 of a steady 20/s."""
    name = fresh("steady")
    create(http, name)
    page = open_ui("settings.json")
    page.clock.install()
    page.goto(f"{http.base_url}/ui/{place(name)}".replace("//ui", "/ui"))
    await_live(page)
    page.keyboard.press("p")
    expect(live_button(page)).to_contain_text("Paused")
    chart = page.get_by_role("region", name="Appends").get_by_role("img")
    tail = page.locator("[data-fact=tail]")
    rates: list[float] = []
    for end in range(40, 280, 40):
        append(http, name, compact([{"n": n} for n in range(40)]))
        while f"{end} ·" not in (tail.text_content() or ""):
            page.clock.run_for(1000)
            said = re.search("Appends: (.*) per second", chart.get_attribute("aria-label") or "")
            rates += [float(said[1])] if said else []
    steady = rates[rates.index(max(rates)) :]
    assert len(steady) > 4, rates
    assert 0 not in steady, rates


def test_a_phone_has_the_messages_below_three_rows_and_names_what_destroys(
    open_ui: Open, http: httpx.Client
) -> None:
    name = fresh("small")
    create(http, name)
    append(http, name, '{"role": "none"}')
    page = open_ui(place(name), viewport={"width": 390, "height": 780}, has_touch=True)
    await_live(page)
    box = lines(page).first.bounding_box()
    assert box is not None
    assert box["y"] < 200
    expect(page.get_by_label("Search messages")).to_be_hidden()
    page.get_by_role("button", name="Search and jump").tap()
    expect(page.get_by_label("Search messages")).to_be_focused()
    page.get_by_role("button", name="Actions", exact=True).tap()
    for label in ("Fork", "Close", "Delete"):
        expect(page.locator("#stream-actions").get_by_text(label, exact=True)).to_be_visible()
    page.get_by_role("button", name="Delete stream").tap()
    expect(page.get_by_role("dialog", name="Delete the stream?")).to_be_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
