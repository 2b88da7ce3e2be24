"""Nothing a stream contains can run: the corpus in names, content types and messages."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import Open
from tests.ui.helpers import ROOT, append, await_live, create, fresh, lines, place, tree_row

pytestmark = pytest.mark.slow

# Each would set `window.hurt` if it ran anywhere.
CORPUS = (
    "<script>window.hurt=1</script>",
    "<img src=x onerror=window.hurt=1>",
    "<svg onload=window.hurt=1>",
    "<svg><script href='data:text/javascript,window.hurt=1'/></svg>",
    "<iframe srcdoc='<script>parent.hurt=1</script>'></iframe>",
    "<math><mi xlink:href='javascript:window.hurt=1'>x</mi></math>",
    "<a href='javascript:window.hurt=1' id=x>x</a>",
    "<style>@import'javascript:window.hurt=1';</style>",
    "<details open ontoggle=window.hurt=1>",
    "<input autofocus onfocus=window.hurt=1>",
    "<body onload=window.hurt=1>",
    "<template><img src=x onerror=window.hurt=1></template>",
    "<noscript><p title='</noscript><img src=x onerror=window.hurt=1>'>",
    "'\"--></style></script><script>window.hurt=1</script>",
    "javascript:window.hurt=1",
    "${window.hurt=1} {{constructor.constructor('window.hurt=1')()}}",
    "__proto__ constructor toString hasOwnProperty",
    "\u202egnp.exe \u2066<script>window.hurt=1</script>\u2069",
    "]]><script>window.hurt=1</script><![CDATA[",
    "%3Cscript%3Ewindow.hurt=1%3C/script%3E",
)
PRODUCER = "<img src=x onerror=window.hurt=1>"
NAMES = tuple(text.replace("/", "∕") for text in CORPUS)


def assert_unhurt(page: Page) -> None:
    assert page.evaluate("() => window.hurt === undefined && {}.hurt === undefined")
    strangers = "script:not([src='app.js']), iframe, object, embed, [onerror], [onload], [srcdoc]"
    assert page.locator(strangers).count() == 0


def test_hostile_messages_are_text(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("messages")
    create(http, name, "text/html")
    append(http, name, *CORPUS, content_type="text/html")
    page = open_ui(place(name))
    await_live(page)
    expect(lines(page)).to_have_count(len(CORPUS))
    for index, text in enumerate(CORPUS):
        assert page.locator(".preview").nth(index).text_content() == text
    append(http, name, CORPUS[0], content_type="text/html")
    expect(lines(page)).to_have_count(len(CORPUS) + 1)
    for way in ("Text", "Hex"):
        lines(page).first.click() if way == "Text" else None
        page.get_by_role("button", name=way, exact=True).first.click()
        assert_unhurt(page)
    page.get_by_label("Search messages").fill("window.hurt")
    expect(page.locator("mark").first).to_be_visible()
    assert_unhurt(page)


def test_hostile_json_and_state_are_text(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("json")
    create(http, name)
    for text in CORPUS:
        http.post(
            f"{ROOT}/{name}",
            json={
                "type": text,
                "key": text,
                "value": {text: text, "__proto__": {"hurt": 1}},
                "headers": {"operation": "insert"},
            },
        ).raise_for_status()
    page = open_ui(place(name))
    await_live(page)
    lines(page).first.click()
    expect(page.locator(".payload")).to_contain_text("<script>window.hurt=1</script>")
    page.get_by_role("button", name="State", exact=True).click()
    table = page.get_by_role("table", name="State")
    expect(table.get_by_role("row")).to_have_count(len(CORPUS) + 1)
    expect(table).to_contain_text("<script>window.hurt=1</script>")
    assert_unhurt(page)


def test_hostile_conversations_are_text(open_ui: Open, http: httpx.Client) -> None:
    """Roles, texts, names of tools, their input and output, files: in every part of a turn."""
    name = fresh("conversation")
    create(http, name)
    messages: list[object] = []
    for number, text in enumerate(CORPUS):
        call = {"toolCallId": text + str(number)}
        messages += [
            {"role": text, "content": f"```{text}\n{text}\n```\n{text}", "id": text},
            {"type": "reasoning-delta", "id": text, "delta": text},
            {"type": "text-delta", "id": text, "delta": text},
            {"type": "tool-input-available", "toolName": text, "input": {text: text}, **call},
            {"type": "tool-output-error", "errorText": text, **call},
            {"type": "file", "url": text, "mediaType": text},
            {"type": "source-url", "url": "javascript:window.hurt=1", "title": text},
            {"type": f"data-{text}", "data": {"__proto__": {"hurt": 1}, text: text}},
            {"type": "error", "errorText": text},
            {"choices": [{"delta": {"role": text, "content": text, "tool_calls": [None, {}]}}]},
        ]
    http.post(f"{ROOT}/{name}", json=messages).raise_for_status()
    page = open_ui(place(name))
    turns = page.locator(".turns")
    expect(turns).to_contain_text(CORPUS[0])
    for summary in turns.locator("summary").all():
        summary.click()
    expect(turns.locator("details[open]").first).to_be_visible()
    assert turns.locator("a, img, [href], [src]").count() == 0
    assert_unhurt(page)


def test_hostile_filters_and_opened_rows_are_text(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("rows")
    create(http, name)
    for text in CORPUS[:3]:
        change = {"type": text, "key": text, "value": {text: text, "constructor": text}}
        http.post(f"{ROOT}/{name}", json={**change, "headers": {"operation": "insert"}})
    page = open_ui(place(name))
    await_live(page)
    box = page.get_by_label("Search messages")
    for asked in ("$.constructor", "$.__proto__.hurt", '$["__proto__"]', "$[0][*].toString == 1"):
        box.fill(asked)
        expect(page.locator(".found")).to_have_text("0 of 3")
    box.fill(f'$.a "{CORPUS[0]}"')
    expect(page.locator(".find-problem")).to_contain_text(f'but found “"{CORPUS[0]}"”')
    box.fill(f'$.key == "{CORPUS[0]}"')
    expect(page.locator(".found")).to_have_text("1 of 3")
    page.get_by_role("button", name="State", exact=True).click()
    page.get_by_role("button", name=CORPUS[1], exact=True).click()
    expect(page.get_by_role("region", name="Row", exact=True)).to_contain_text(CORPUS[1])
    assert_unhurt(page)


def test_hostile_names_and_content_types_are_text(open_ui: Open, http: httpx.Client) -> None:
    prefix = fresh("names")
    names = [f"{prefix}/{text}" for text in NAMES]
    for name in names:
        # What a header may hold; the rest of the corpus cannot be a content type at all.
        kind = 'text/html; x="<script>window.hurt=1</script>"'
        create(http, name, kind)
        # A producer names itself, and a fork is named by its source's details.
        http.post(
            f"{ROOT}/{quote(name)}",
            headers={
                "Content-Type": kind,
                "Producer-Id": PRODUCER,
                "Producer-Epoch": "0",
                "Producer-Seq": "0",
            },
            content="x",
        ).raise_for_status()
    page = open_ui(place(names[0]))
    await_live(page)
    expect(page.locator(".stream-name")).to_have_text(names[0])
    expect(page.locator(".badges")).to_contain_text("<script>window.hurt=1</script>")
    expect(page.locator(".details table")).to_contain_text(PRODUCER)
    expect(page.locator(".message-line .writer")).to_have_text(PRODUCER)
    lines(page).first.click()
    expect(page.locator(".written-by")).to_contain_text(PRODUCER)
    shown = page.locator(".tree-name").all_text_contents()
    assert set(NAMES) <= set(shown)
    page.get_by_role("button", name="Delete stream", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text(names[0])
    page.keyboard.press("Escape")
    page.get_by_label("Search streams").fill("window.hurt")
    expect(page.locator(".tree-row mark").first).to_be_visible()
    for name in names[1:4]:
        page.evaluate("hash => { location.hash = hash }", place(name))
        expect(page.locator(".stream-name")).to_have_text(name)
        assert_unhurt(page)


def test_a_hostile_fork_is_text_in_the_tree_of_forks(open_ui: Open, http: httpx.Client) -> None:
    source = fresh("source")
    create(http, source)
    for text in NAMES[:3]:
        headers = {"Stream-Forked-From": f"{ROOT}/{source}"}
        http.put(f"{ROOT}/{quote(f'{source}-{text}')}", headers=headers).raise_for_status()
    page = open_ui(place(source))
    expect(page.locator(".forks")).to_contain_text(NAMES[0])
    page.locator(".forks").get_by_role("button", name=f"{source}-{NAMES[1]}").click()
    expect(page.locator(".stream-name")).to_have_text(f"{source}-{NAMES[1]}")
    expect(tree_row(page, source)).to_be_visible()
    assert_unhurt(page)


def test_hostile_subscriptions_pipelines_and_streams_of_buckets_are_text(
    open_ui: Open, http: httpx.Client
) -> None:
    watched, wake, bucket = fresh("watched"), fresh("wake"), "hostile-bucket"
    hostile = CORPUS[1]
    create(http, watched)
    create(http, wake)
    config = {"type": "pull-wake", "streams": [watched], "wake_stream": wake}
    answer = http.put(f"{ROOT}/__ds/subscriptions/{quote(hostile, safe='')}", json=config)
    assert answer.status_code == 201, answer.text
    value = {"state": hostile, "updated_at": 0, "last_error": hostile, "lag_rows": hostile}
    change = {"type": "pipeline", "key": hostile, "value": value}
    for id in (bucket, "pipelines"):
        http.put(f"/{id}")
    progress = {**change, "headers": {"operation": "upsert"}}
    http.put("/pipelines/progress", json=[progress]).raise_for_status()
    for text in NAMES:
        http.put(f"/{bucket}/{quote(text.replace('..', ''), safe='')}").raise_for_status()
    page = open_ui(place(watched))
    expect(page.locator(".details")).to_contain_text(hostile)
    assert_unhurt(page)
    page.keyboard.press("o")
    expect(page.locator(".pipelines")).to_contain_text(hostile)
    assert_unhurt(page)
    page.get_by_label("Search streams").fill(f"{bucket}/")
    expect(page.locator(".tree-row")).to_have_count(len(NAMES))
    page.locator(".tree-row").first.click()
    await_live(page)
    assert_unhurt(page)
    page.evaluate("hash => { location.hash = hash }", f"#/bucket/{bucket}")
    rows = page.get_by_role("table", name="Streams of the bucket").get_by_role("row")
    expect(rows.get_by_role("button", name=NAMES[1], exact=True)).to_be_visible()
    octets = {"Content-Type": "application/octet-stream"}
    appended = f"/{bucket}/{quote(NAMES[0], safe='')}"
    http.post(appended, headers=octets, content="x").raise_for_status()
    expect(page.locator(".feed")).to_contain_text(NAMES[0])
    assert_unhurt(page)
    page.evaluate("hash => { location.hash = hash }", f"#/bucket/{quote(hostile, safe='')}")
    expect(page.locator(".bucket-name")).to_have_text(f"/{hostile}")
    expect(page.locator(".bucket .notice")).to_be_visible()
    assert_unhurt(page)


def test_a_message_as_large_as_the_server_takes_is_shown_in_part(
    open_ui: Open, http: httpx.Client
) -> None:
    name = fresh("large")
    create(http, name)
    append(http, name, '{"a":"' + "y" * 5_000_000 + '"}', "[" * 900 + "]" * 900)
    page = open_ui(place(name))
    await_live(page)
    lines(page).first.click()
    expect(page.locator(".payload")).to_contain_text("not shown")
    expect(lines(page).nth(1)).to_be_visible()


def test_a_stream_opened_by_its_own_address_runs_nothing(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("page")
    create(http, name, "text/html")
    append(
        http, name, "<p>here</p><script>document.title = 'hurt'</script>", content_type="text/html"
    )
    page = open_ui()
    # Chromium says on the console what the sandbox has stopped; that is as it should be.
    page.goto(str(http.base_url).rstrip("/") + f"{ROOT}/{name}")
    expect(page.get_by_text("here")).to_be_visible()
    assert page.title() != "hurt"
