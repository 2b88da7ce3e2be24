"""100,000 messages, and 100,000 streams twice over: the page stays quick."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from headrace.testing.server_process import ServerProcess
from tests.conftest import stop_cleanly
from tests.http.helpers import client_of
from tests.ui.conftest import Open
from tests.ui.crowded import BUCKET, MANY, CrowdedServer
from tests.ui.helpers import append, await_live, compact, create, fresh, lines, place, tree_row

pytestmark = pytest.mark.slow

LONG_TASK_MS_MAX = 200
# On a busy machine a task is long because it did not get the processor. A page that is itself
# slow is slow every time; so the best of a few tries is what it can do.
TRIES = 10

WATCH = """() => {
  window.longTasks = []
  const keep = (list) => window.longTasks.push(...list.getEntries().map((task) => task.duration))
  window.taskObserver = new PerformanceObserver(keep)
  window.taskObserver.observe({ type: "longtask" })
}"""
LONGEST = """() => {
  const late = window.taskObserver.takeRecords().map((task) => task.duration)
  const longest = Math.max(0, ...window.longTasks, ...late)
  window.longTasks = []
  return longest
}"""
SCROLL = """async (selector) => {
  const scroller = document.querySelector(selector)
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve))
  const seen = new Set()
  for (let step = 0; step <= 40; step += 1) {
    scroller.scrollTop = (scroller.scrollHeight * ((step * 17) % 41)) / 40
    await frame()
    await frame()
    seen.add(scroller.textContent.slice(0, 200))
  }
  return seen.size
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = CrowdedServer(str(tmp_path_factory.mktemp("crowded")))
    process.start()
    yield process
    stop_cleanly(process)


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with client_of(server) as client:
        yield client


def assert_scrolls_smoothly(page: Page, selector: str) -> None:
    longest = []
    for _ in range(TRIES):
        page.evaluate(LONGEST)
        assert page.evaluate(SCROLL, selector) > 20, "scrolling shows other rows"
        longest.append(page.evaluate(LONGEST))
        if longest[-1] <= LONG_TASK_MS_MAX:
            return
    raise AssertionError(f"the longest task of each of {TRIES} tries, in ms: {longest}")


def test_a_hundred_thousand_messages_scroll(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("many")
    create(http, name)
    for first in range(0, MANY, 10_000):
        append(http, name, compact([{"n": n, "who": "ann"} for n in range(first, first + 10_000)]))
    page = open_ui(place(name))
    page.evaluate(WATCH)
    expect(page.locator(".badges")).to_contain_text("100,000 messages")
    await_live(page)
    expect(page.locator(".preview", has_text='{"n":99999,')).to_be_visible()
    expect(page.locator(".list-summary")).to_have_text("200,001 streams")
    assert_scrolls_smoothly(page, ".messages")
    assert lines(page).count() < 100
    page.get_by_label("Search messages").fill('"n":77777,')
    expect(page.locator(".found")).to_have_text("1 of 100,000")
    http.delete(f"/v1/stream/{name}").raise_for_status()


def test_a_hundred_thousand_streams_in_a_folder_and_in_a_bucket_scroll_and_are_searched(
    open_ui: Open, http: httpx.Client
) -> None:
    page = open_ui()
    page.evaluate(WATCH)
    summary = page.locator(".list-summary")
    expect(summary).to_have_text("200,000 streams")
    # The bucket's folder stands first. Opened after it, the other has both of them in one list.
    for folder, first in ((f"/{BUCKET}", f"/{BUCKET}/0"), ("fleet", "fleet/0")):
        page.get_by_role("tree").evaluate("tree => { tree.scrollTop = 0 }")
        tree_row(page, folder).locator(".twist").click()
        expect(tree_row(page, first)).to_be_visible()
        assert_scrolls_smoothly(page, ".tree")
        assert page.locator(".tree-row").count() < 100
        page.get_by_role("tree").evaluate("tree => { tree.scrollTop = 0 }")
        tree_row(page, folder).locator(".twist").click()
    page.get_by_label("Search streams").fill("/1869f")
    expect(summary).to_have_text("2 of 200,000 streams")
    create(http, "fleet/1869f-late")
    expect(summary).to_have_text("3 of 200,001 streams")
    http.put(f"/{BUCKET}/1869f-late").raise_for_status()
    expect(summary).to_have_text("4 of 200,002 streams")
    http.delete(f"/{BUCKET}/1869f-late").raise_for_status()
    expect(summary).to_have_text("3 of 200,001 streams")
