"""Pictures of the main views for docs/browser.md, of a server with something to show.

`make screenshots` puts them into docs/images; every other run takes them too, and throws them away.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from headrace.spark.pipelines.progress import Progress
from headrace.spark.pipelines.progress_stream import change
from headrace.testing.server_process import ServerProcess
from tests.conftest import stop_cleanly
from tests.http.helpers import client_of
from tests.ui.conftest import Open
from tests.ui.helpers import ROOT, append, await_live, compact, create, lines, place, tree_row

pytestmark = pytest.mark.slow

SOME_POINTS = re.compile(r"(L.*){4}")
PICTURES = ("stream", "overview", "state", "transcript", "bucket", "phone")
ROWS_OF_CHARTS = """() => {
  const rows = {}
  for (const chart of document.querySelectorAll(".overview .charts > .chart")) {
    const top = chart.getBoundingClientRect().top
    if (chart.checkVisibility()) rows[top] = (rows[top] ?? 0) + 1
  }
  return Object.entries(rows).sort(([a], [b]) => a - b).map(([, number]) => number)
}"""
PNG = b"\x89PNG\r\n\x1a\n"
PNG_BYTES_MIN = 10_000  # an empty page of this size has less


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A durable server with streams, forks, producers and a writer that goes on writing."""
    env = {"DS_STORAGE__MODE": "file-durable", "DS_STORAGE__DATA_DIR": "streams"}
    server = ServerProcess(env, cwd=str(tmp_path_factory.mktemp("busy")))
    server.start()
    done = threading.Event()
    with client_of(server) as http:
        furnish(http)
    writer = threading.Thread(target=write_on, args=(server, done))
    writer.start()
    yield server
    done.set()
    writer.join()
    stop_cleanly(server)


def furnish(http: httpx.Client) -> None:
    for name in ("orders/eu/live", "orders/us/live", "chat/room-1", "chat/room-2", "sensors/roof"):
        create(http, name)
    create(http, "logs/web", "text/plain", Stream_TTL="86400")
    create(http, "images/thumbnails", "application/octet-stream")
    http.put("/agents")
    for session, turns in (("planner", 2), ("researcher", 3), ("reviewer", 1), ("writer", 2)):
        http.put(f"/agents/{session}", headers={"Content-Type": "application/json"})
        http.post(f"/agents/{session}", json=conversation(turns)).raise_for_status()
    for n in range(120):
        order(http, n)
    http.put(f"{ROOT}/orders/eu/what-if", headers={"Stream-Forked-From": f"{ROOT}/orders/eu/live"})
    append(http, "chat/room-1", *(person(n) for n in range(14)))
    append(http, "orders/us/live", compact([{"n": n} for n in range(2_400)]))
    http.post(f"{ROOT}/orders/us/live", headers={"Stream-Closed": "true"})
    config = {"type": "pull-wake", "pattern": "orders/**", "wake_stream": "chat/room-2"}
    http.put(f"{ROOT}/__ds/subscriptions/fulfilment", json=config)
    http.put("/pipelines")
    words = [word for age in range(240, 0, -5) for word in pipelines(time.time() - age, age)]
    http.put("/pipelines/progress", headers={"Content-Type": "application/json"}, json=words)


def pipelines(at: float, age: int) -> list[dict[str, object]]:
    """What two pipelines say at a moment, as `headrace.spark.pipelines.progress_stream` puts it."""
    lags = {"stream-to-postgres": 0.2 + age % 35 / 40, "archive": 4 + age % 60 / 6}
    told = (
        Progress(
            name,
            pid=1,
            state="running",
            updated_at=at,
            rows=81_200 - 40 * age,
            rows_per_sec=212,
            lag_secs=lag,
            lag_rows=int(40 * lag),
        )
        for name, lag in lags.items()
    )
    return [change(progress) for progress in told]


def conversation(turns: int) -> list[dict[str, object]]:
    """A session as the AI SDK streams it: a question, a tool call, an answer token by token."""
    asked = "Which orders from Basel are still unpaid, and is one of them overdue?"
    answer = (
        "Two orders from Basel are unpaid: 4213 and 4217.\n\n"
        "Order 4213 is nine days overdue. This finds both:\n\n"
        "```sql\nselect id, due_at from orders\nwhere city = 'Basel' and not paid;\n```\n"
        "Shall I send a reminder for 4213?"
    )
    said: list[dict[str, object]] = []
    for turn in range(turns):
        call, text = f"call-{turn}", f"text-{turn}"
        rows = {"unpaid": [4213, 4217], "overdue": [4213]}
        query = {"city": "Basel", "paid": False}
        tokens = re.findall(r"\S+\s*|\s+", answer if turn == turns - 1 else "Here they are.")
        said += [
            {"id": f"u{turn}", "role": "user", "parts": [{"type": "text", "text": asked}]},
            {"type": "start", "messageId": f"m{turn}"},
            {"type": "reasoning-start", "id": "r"},
            {"type": "reasoning-delta", "id": "r", "delta": "The orders are in the database."},
            {"type": "tool-input-start", "toolCallId": call, "toolName": "find_orders"},
            {"type": "tool-input-available", "toolCallId": call, "input": query},
            {"type": "tool-output-available", "toolCallId": call, "output": rows},
            {"type": "text-start", "id": text},
            *({"type": "text-delta", "id": text, "delta": token} for token in tokens),
            {"type": "text-end", "id": text},
            {"type": "finish"},
        ]
        asked = "Thanks. And the ones from Bern?"
    return said


def order(http: httpx.Client, n: int) -> None:
    items = [{"sku": f"H-{n % 9 + 100}", "count": n % 3 + 1}]
    value = {"order": 4200 + n, "customer": f"c-{n % 17:03d}", "items": items, "paid": n % 4 != 0}
    headers = {"Producer-Id": "shop-frontend", "Producer-Epoch": "1", "Producer-Seq": str(n)}
    http.post(f"{ROOT}/orders/eu/live", headers=headers, json=value).raise_for_status()


def person(n: int) -> str:
    names = ("Ann", "Bob", "Chidi", "Dana", "Emre", "Fatou", "Gus")
    value = {"name": names[n % 7], "status": ("online", "away")[n % 2], "messages": n * 3}
    headers = {"operation": "insert" if n < 7 else "update"}
    return compact([{"type": "user", "key": f"u{n % 7}", "value": value, "headers": headers}])


def write_on(server: ServerProcess, done: threading.Event) -> None:
    with client_of(server) as http:
        n = 120
        while not done.wait(0.02 + 0.03 * (n % 40 > 25)):
            order(http, n)
            n += 1


def take(page: Page, name: str, tmp_path: Path) -> None:
    directory = Path(os.environ.get("UI_SCREENSHOTS", tmp_path))
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"browser-{name}.png"
    page.mouse.move(0, 0)
    page.screenshot(path=path, animations="disabled")
    assert path.read_bytes().startswith(PNG)
    assert path.stat().st_size > PNG_BYTES_MIN


def settle(page: Page, chart: str = "Appends") -> None:
    """Long enough for the charts to have something to show: a few samples of a second each."""
    line = page.get_by_role("region", name=chart).locator("path.line").first
    expect(line).to_have_attribute("d", SOME_POINTS)


def test_the_stream_view(open_ui: Open, busy: ServerProcess, tmp_path: Path) -> None:
    page = open_ui(place("orders/eu/live"), busy.url, color_scheme="light")
    await_live(page)
    expect(tree_row(page, "/agents")).to_be_visible()
    settle(page)
    live = page.locator("button.live")
    live.click()
    expect(live).to_contain_text("Paused")
    live.click()
    await_live(page)
    lines(page).nth(-6).click()
    expect(page.locator(".payload")).to_be_visible()
    take(page, "stream", tmp_path)


def test_the_overview(open_ui: Open, busy: ServerProcess, tmp_path: Path) -> None:
    page = open_ui("", busy.url, color_scheme="dark")
    expect(page.get_by_role("region", name="Lag of archive")).to_be_visible()
    expect(page.get_by_role("region", name="Commit batch")).to_be_visible()
    expect(page.get_by_role("region", name="Commit and sync")).to_be_visible()
    settle(page, "Throughput")
    assert page.evaluate(ROWS_OF_CHARTS) == [2, 4, 4], "no chart stands alone"
    axis = page.get_by_role("region", name="Throughput").locator("text.axis")
    expect(axis.filter(has_text=re.compile(r"\d\d:\d\d:\d\d")).first).to_be_visible()
    baselines = page.locator(".tile b").evaluate_all("all => all.map(b => b.offsetTop)")
    assert len(set(baselines)) == 1
    take(page, "overview", tmp_path)


def test_the_state_view(open_ui: Open, busy: ServerProcess, tmp_path: Path) -> None:
    page = open_ui(place("chat/room-1"), busy.url, color_scheme="dark")
    await_live(page)
    page.get_by_role("button", name="State", exact=True).click()
    expect(page.get_by_role("table", name="State").get_by_role("row")).to_have_count(8)
    page.get_by_role("button", name="u2", exact=True).click()
    expect(page.get_by_label("Value", exact=True)).to_contain_text("Chidi")
    settle(page)
    take(page, "state", tmp_path)


def test_the_transcript(open_ui: Open, busy: ServerProcess, tmp_path: Path) -> None:
    page = open_ui(place("/agents/planner"), busy.url, color_scheme="light")
    await_live(page)
    call = page.locator(".turn details.tool").last
    call.locator("summary").click()
    expect(call).to_contain_text("4213")
    page.locator(".transcript-body").evaluate("box => { box.scrollTop = box.scrollHeight }")
    take(page, "transcript", tmp_path)


def test_a_bucket(open_ui: Open, busy: ServerProcess, tmp_path: Path) -> None:
    page = open_ui("#/bucket/agents", busy.url, color_scheme="light")
    table = page.get_by_role("table", name="Streams of the bucket")
    expect(table.get_by_role("row")).to_have_count(5)
    with client_of(busy) as http:
        for n in range(3):
            note = {"id": f"late-{n}", "role": "user", "content": "One more thing."}
            http.post("/agents/writer", json=[note] * (n + 1)).raise_for_status()
            expect(page.locator(".feed b")).to_have_count(n + 1)
    settle(page)
    take(page, "bucket", tmp_path)


def test_a_phone(open_ui: Open, busy: ServerProcess, tmp_path: Path) -> None:
    phone = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True}
    page = open_ui(place("orders/eu/live"), busy.url, color_scheme="light", **phone)
    await_live(page)
    lines(page).nth(-4).tap()
    expect(page.locator(".payload")).to_be_visible()
    take(page, "phone", tmp_path)


def test_the_pictures_in_the_documentation_are_these() -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "browser.md").read_text("utf-8")
    for name in PICTURES:
        assert (docs / "images" / f"browser-{name}.png").read_bytes().startswith(PNG)
        assert f"images/browser-{name}.png" in page
