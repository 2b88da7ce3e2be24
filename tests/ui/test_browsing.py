"""A person at the stream browser: makes, fills, follows, forks, closes and deletes streams."""

from __future__ import annotations

import re
import time

import httpx
import pytest
from playwright.sync_api import expect

from headrace.testing.waiting import eventually
from tests.conftest import Serve
from tests.http.helpers import client_of
from tests.ui.conftest import Open
from tests.ui.helpers import (
    JSON,
    ROOT,
    TEXT,
    append,
    await_live,
    badge,
    compact,
    create,
    fresh,
    lines,
    live_button,
    numbers,
    place,
    tree_row,
)

pytestmark = pytest.mark.slow

LINES_OF_TEXT = """(element) => {
  const range = document.createRange()
  range.selectNodeContents(element)
  return range.getClientRects().length
}"""


def test_a_stream_is_created_appended_to_and_seen_at_once(
    open_ui: Open, http: httpx.Client
) -> None:
    name = fresh("made")
    page = open_ui()
    page.get_by_role("button", name="New").click()
    page.get_by_label("Name", exact=False).first.fill(name)
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
    await_live(page)
    box = page.get_by_label("Message to append")
    box.fill('{"hello": 1')
    expect(page.locator(".verdict")).to_contain_text("Not JSON")
    expect(page.get_by_role("button", name="Append", exact=True)).to_be_disabled()
    box.fill('[{"hello": 1}, {"hello": 2}]')
    expect(page.locator(".verdict")).to_have_text("2 messages")
    box.press("Control+Enter")
    expect(lines(page)).to_have_count(2)
    expect(box).to_have_value("")
    assert http.get(f"{ROOT}/{name}").json() == [{"hello": 1}, {"hello": 2}]
    expect(tree_row(page, name)).to_be_visible()


def test_two_windows_see_each_others_appends(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("shared")
    create(http, name, "text/plain")
    one, other = open_ui(place(name)), open_ui(place(name))
    for page in (one, other):
        await_live(page)
    one.get_by_label("Message to append").fill("from one")
    one.get_by_role("button", name="Append", exact=True).click()
    expect(lines(other)).to_have_count(1)
    other.get_by_label("Message to append").fill("from the other")
    other.get_by_role("button", name="Append", exact=True).click()
    for page in (one, other):
        expect(page.locator(".preview")).to_have_text(["from one", "from the other"])


def test_a_paused_tail_stands_still_and_says_what_came_since(
    open_ui: Open, http: httpx.Client
) -> None:
    name = fresh("paused")
    create(http, name)
    append(http, name, "1")
    page = open_ui(place(name))
    await_live(page)
    page.keyboard.press("p")
    expect(live_button(page)).to_contain_text("Paused")
    append(http, name, "2", "3")
    expect(live_button(page)).to_contain_text("Paused · 2 new")
    assert lines(page).count() == 1
    live_button(page).click()
    await_live(page)
    expect(page.locator(".preview")).to_have_text(["1", "2", "3"])


def test_jumps_go_to_the_start_the_end_a_number_and_an_offset(
    open_ui: Open, http: httpx.Client
) -> None:
    name = fresh("jump")
    create(http, name)
    middle = append(http, name, compact([{"n": n} for n in range(700)]))
    append(http, name, compact([{"n": n} for n in range(700, 2000)]))
    page = open_ui(place(name))
    await_live(page)
    expect(page.locator(".preview", has_text='{"n":1999}')).to_be_visible()
    page.get_by_role("button", name="Jump to the start").click()
    expect(page.locator(".preview", has_text='{"n":0}')).to_be_visible()
    field = page.get_by_label("Jump to an offset or a message number")
    field.fill("1234")
    field.press("Enter")
    expect(page.locator(".preview", has_text='{"n":1234}')).to_be_in_viewport()
    field.fill(middle)
    field.press("Enter")
    expect(page.locator(".preview", has_text='{"n":700}')).to_be_in_viewport()
    field.fill(f"{3:016d}_{1:016d}")
    field.press("Enter")
    expect(page.locator(".toast")).to_contain_text("no message boundary")
    page.get_by_role("button", name="Jump to the end").click()
    expect(page.locator(".preview", has_text='{"n":1999}')).to_be_visible()


def test_a_message_opens_as_json_text_and_hex(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("opened")
    create(http, name)
    append(http, name, '{"big": 12345678901234567890, "text": "a\\u00e9", "empty": {}, "list": []}')
    page = open_ui(place(name))
    lines(page).first.click()
    payload = page.locator(".payload")
    expect(payload).to_have_text(
        '{\n  "big": 12345678901234567890,\n  "text": "a\\u00e9",\n  "empty": {},\n  "list": []\n}'
    )
    page.get_by_role("button", name="Text", exact=True).click()
    expect(payload).to_contain_text('{"big": 12345678901234567890,')
    page.get_by_role("button", name="Hex", exact=True).click()
    expect(payload).to_contain_text("00000000  7b 22 62 69 67 22 3a 20")
    expect(page.locator(".opened .offset")).to_have_text(f"{0:016d}_{0:016d}")


def test_bytes_are_shown_and_appended_as_hex(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("bytes")
    create(http, name, "application/octet-stream")
    page = open_ui(place(name))
    await_live(page)
    box = page.get_by_label("Message to append")
    box.fill("00 ff zz")
    expect(page.locator(".verdict")).to_contain_text("hex digits")
    box.fill("00 ff 10")
    box.press("Control+Enter")
    expect(page.locator(".preview")).to_have_text(["00 ff 10"])
    assert http.get(f"{ROOT}/{name}").content == b"\x00\xff\x10"


def test_messages_keep_their_boundaries_whatever_way_they_come(
    open_ui: Open, http: httpx.Client
) -> None:
    """Read back in one piece, or live in one event: each append is one row."""
    name = fresh("boundaries")
    create(http, name, "text/plain")
    append(http, name, "one", "two\r\nlines", content_type="text/plain")
    page = open_ui(place(name))
    await_live(page)
    expect(page.locator(".preview")).to_have_text(["one", "two lines"])
    append(http, name, *(f"live {n}" for n in range(20)), content_type="text/plain")
    expect(lines(page)).to_have_count(22)
    assert page.locator(".preview").all_text_contents()[2:] == [f"live {n}" for n in range(20)]


def test_search_finds_messages_and_shows_only_those(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("search")
    create(http, name)
    append(http, name, compact([{"n": n, "who": "Ann" if n % 10 else "Bob"} for n in range(500)]))
    page = open_ui(place(name))
    await_live(page)
    page.keyboard.press("f")
    page.keyboard.type("bob")
    expect(page.locator(".found")).to_have_text("50 of 500")
    expect(page.locator(".preview mark").first).to_have_text("Bob")
    append(http, name, '{"n": 500, "who": "Bob"}')
    expect(page.locator(".found")).to_have_text("51 of 501")
    page.keyboard.press("Escape")
    expect(page.locator(".found")).to_have_text("")


def test_a_fork_from_a_message_shares_what_came_before_it(
    open_ui: Open, http: httpx.Client
) -> None:
    name = fresh("source")
    create(http, name)
    append(http, name, "1", "2", "3")
    page = open_ui(place(name))
    await_live(page)
    lines(page).nth(2).click()
    page.get_by_role("button", name="Fork from here").click()
    page.get_by_label("Name of the fork").fill(f"{name}-fork")
    page.get_by_role("button", name="Fork", exact=True).last.click()
    expect(page.get_by_role("heading", level=1, name=f"{name}-fork")).to_be_visible()
    expect(page.locator(".preview")).to_have_text(["1", "2"])
    tree = page.locator(".forks")
    expect(tree).to_contain_text(f"{name}-fork")
    tree.get_by_role("button", name=name, exact=True).click()
    expect(page.get_by_role("heading", level=1, name=name, exact=True)).to_be_visible()
    expect(page.locator(".forks").get_by_role("button", name=f"{name}-fork")).to_be_visible()


def test_forks_of_forks_stand_below_them(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("root")
    create(http, name)
    for fork, source in (("a", ""), ("b", ""), ("a-1", "-a"), ("a-1-x", "-a-1")):
        headers = {"Stream-Forked-From": f"{ROOT}/{name}{source}"}
        http.put(f"{ROOT}/{name}-{fork}", headers=headers).raise_for_status()
    page = open_ui(place(name))
    tree = page.locator(".forks")
    nested = tree.locator(":scope > li > ul > li > ul > li > ul > li")
    expect(nested).to_contain_text(f"{name}-a-1-x")
    expect(tree.get_by_role("button", name=f"{name}-b")).to_be_visible()
    tree.get_by_role("button", name=f"{name}-a-1", exact=True).click()
    expect(page.locator(".forks .here")).to_contain_text(f"{name}-a-1")
    expect(tree.locator(":scope > li > ul > li > ul > li.here")).to_be_visible()
    expect(tree_row(page, name).get_by_title("has forks")).to_be_visible()
    expect(tree_row(page, f"{name}-a").get_by_title("forked")).to_be_visible()


def test_the_tree_tells_what_expires_and_how_fast_it_grows(
    open_ui: Open, http: httpx.Client
) -> None:
    name = fresh("growing")
    create(http, name, "text/plain", Stream_TTL="600")
    page = open_ui()
    row = tree_row(page, name)
    page.get_by_label("Search streams").fill(name)
    expect(row.get_by_role("img", name="expiring")).to_be_visible()

    def grows() -> bool:
        append(http, name, "x", content_type="text/plain")
        return row.locator(".spark:not(.flat)").count() == 1

    eventually(grows, "the line shows a rate")
    expect(row.locator(".tail")).to_have_text(re.compile(r"^[1-9]"))


def test_a_closed_stream_says_so_and_takes_no_more(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("closed")
    create(http, name)
    append(http, name, "1")
    page = open_ui(place(name))
    await_live(page)
    page.get_by_role("button", name="Close stream", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Close stream").click()
    expect(live_button(page)).to_contain_text("Closed")
    expect(badge(page, "closed")).to_be_visible()
    expect(page.get_by_label("Message to append")).to_be_hidden()
    expect(tree_row(page, name).get_by_role("img", name="closed")).to_be_visible()
    assert http.head(f"{ROOT}/{name}").headers["stream-closed"] == "true"


def test_a_deleted_stream_leaves_the_list_and_its_readers_know(
    open_ui: Open, http: httpx.Client
) -> None:
    name = fresh("deleted")
    create(http, name)
    page, other = open_ui(place(name)), open_ui(place(name))
    for window in (page, other):
        await_live(window)
        expect(tree_row(window, name)).to_be_visible()
    page.get_by_role("button", name="Delete stream", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete stream").click()
    expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()
    for window in (page, other):
        expect(tree_row(window, name)).to_have_count(0)
    expect(other.locator(".view .notice")).to_contain_text("There is no stream")


def test_details_tell_producers_lifetime_and_subscriptions(
    open_ui: Open, http: httpx.Client
) -> None:
    name, wake = fresh("details"), fresh("wake")
    create(http, name, "text/plain", Stream_TTL="7200")
    create(http, wake)
    headers = {"Producer-Id": "writer-7", "Producer-Epoch": "2", "Producer-Seq": "0"}
    http.post(f"{ROOT}/{name}", headers=headers | {"Content-Type": "text/plain"}, content="x")
    config = {"type": "pull-wake", "streams": [name], "wake_stream": wake}
    id = name.replace("/", "-")
    assert http.put(f"{ROOT}/__ds/subscriptions/{id}", json=config).status_code == 201
    long = {"Producer-Id": "writer-of-many", "Producer-Epoch": "123456789", "Producer-Seq": "0"}
    http.post(f"{ROOT}/{name}", headers=long | {"Content-Type": "text/plain"}, content="x")
    page = open_ui(place(name))
    details = page.get_by_role("complementary", name="Details")
    expect(details).to_contain_text("writer-7")
    epoch = details.get_by_role("cell", name="123,456,789")
    assert epoch.evaluate(LINES_OF_TEXT) == 1, "a number is not broken"
    expect(details).to_contain_text(id)
    expect(details.locator("[data-fact=expiry]")).to_contain_text("after the last live reader")
    page.keyboard.press("p")
    expect(details.locator("[data-fact=expiry]")).to_contain_text(re.compile(r"in 0[12]:\d\d:\d\d"))


def test_each_message_names_its_producer_where_that_is_known(
    open_ui: Open, http: httpx.Client
) -> None:
    name = fresh("produced")
    create(http, name, "text/plain")

    def produce(seq: int) -> None:
        stamp = {"Producer-Id": "writer-7", "Producer-Epoch": "2", "Producer-Seq": str(seq)}
        http.post(f"{ROOT}/{name}", headers={**TEXT, **stamp}, content=f"p{seq}").raise_for_status()

    produce(0)
    append(http, name, "nobody's", content_type="text/plain")
    page = open_ui(place(name))
    await_live(page)
    expect(page.locator(".message-line .writer")).to_have_text(["writer-7", ""])
    produce(1)
    expect(page.locator(".message-line .writer")).to_have_text(["writer-7", "", "writer-7"])
    for index, said in ((2, "by writer-7 · epoch 2 · seq 1"), (1, "producer unknown")):
        lines(page).nth(index).click()
        expect(page.locator(".message.open .written-by").first).to_have_text(said)


def test_change_messages_add_up_to_a_table_that_follows(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("state")
    create(http, name)
    append(
        http,
        name,
        '{"type":"user","key":"1","value":{"name":"Ann"},"headers":{"operation":"insert"}}',
        '{"type":"user","key":"2","value":{"name":"Bob"},"headers":{"operation":"insert"}}',
        '{"type":"typing","key":"ann","operation":"set","value":{"on":true}}',
        '{"type":"user","key":"2","headers":{"operation":"delete"}}',
    )
    page = open_ui(place(name))
    await_live(page)
    page.get_by_role("button", name="State", exact=True).click()
    table = page.get_by_role("table", name="State")
    expect(table.get_by_role("row")).to_have_count(3)
    append(
        http,
        name,
        '{"type":"user","key":"1","value":{"name":"Anna"},"headers":{"operation":"update"}}',
        '{"type":"typing","key":"ann","operation":"remove"}',
    )
    expect(table.get_by_role("row")).to_have_count(2)
    expect(table.get_by_role("cell", name="Anna")).to_be_visible()
    table.get_by_role("button", name="update #4").click()
    expect(page.locator(".message.open .payload")).to_contain_text('"Anna"')


def test_a_state_begins_with_the_snapshot_that_history_was_given_up_for(
    open_ui: Open, http: httpx.Client
) -> None:
    bucket = fresh("bucket").replace("/", "-")
    stream = f"/{bucket}/people"

    def change(key: str, name: str, operation: str = "insert") -> dict[str, object]:
        headers = {"operation": operation}
        return {"type": "user", "key": key, "value": {"name": name}, "headers": headers}

    http.put(f"/{bucket}")
    http.put(stream, headers=JSON, json=[change("1", "Ann"), change("2", "Bob")])
    offset = http.head(stream).headers["stream-next-offset"]
    document = {
        "offset": offset,
        "collections": {"user": {"1": {"name": "Ann"}, "2": {"name": "Bob"}}},
    }
    kind = {"Content-Type": "application/vnd.headrace.state+json"}
    published = http.put(f"{stream}/snapshot/{offset}", headers=kind, json=document)
    assert published.is_success, published.text
    page = open_ui(place(stream))
    await_live(page)
    page.get_by_role("button", name="State", exact=True).click()
    table = page.get_by_role("table", name="State")
    expect(page.locator(".state-tools")).to_contain_text("from the snapshot at message 2 on")
    expect(table.get_by_role("cell", name="snapshot")).to_have_count(2)
    http.post(stream, json=change("2", "Bert", "update")).raise_for_status()
    expect(table.get_by_role("button", name="update #2")).to_be_visible()
    expect(table.get_by_role("cell", name="Bert")).to_be_visible()
    expect(table.get_by_role("cell", name="Ann")).to_be_visible()
    expect(table.get_by_role("row")).to_have_count(3)


def test_every_action_can_be_copied_as_a_command(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("curl")
    create(http, name)
    page = open_ui(place(name))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await_live(page)

    def copied() -> str:
        expect(page.locator(".toast").last).to_contain_text("Copied")
        text = page.evaluate("() => navigator.clipboard.readText()")
        assert isinstance(text, str)
        return text

    page.get_by_label("Message to append").fill("""{"it's": "@here"}""")
    page.locator(".composer").get_by_role("button", name="curl").click()
    url = f"{http.base_url}{ROOT}/{name}".replace("//v1", "/v1")
    assert copied() == (
        f"curl -X POST '{url}' -H 'Content-Type: application/json' "
        """--data-raw '{"it'\\''s": "@here"}'"""
    )
    page.get_by_role("button", name="Copy as curl", exact=True).click()
    menu = page.locator(".menu")
    for action in ("Read from the start", "Follow the tail", "Metadata", "Append", "Fork", "Close"):
        expect(menu.get_by_role("button", name=action)).to_be_visible()
    menu.get_by_role("button", name="Delete").click()
    assert copied() == f"curl -X DELETE '{url}'"


def test_the_keyboard_alone_is_enough(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("keys/deep/inside")
    create(http, name)
    append(http, name, '{"first": true}', '{"second": true}')
    page = open_ui()
    page.keyboard.press("/")
    page.keyboard.type(name)
    expect(page.locator(".tree-row")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
    await_live(page)
    lines(page).last.focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.locator(".payload")).to_contain_text('"first": true')
    page.keyboard.press("a")
    page.keyboard.type('{"third": true}')
    page.keyboard.press("Control+Enter")
    expect(lines(page)).to_have_count(3)
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("o")
    expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()


def test_the_overview_shows_what_the_server_does(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("busy")
    create(http, name)
    page = open_ui()
    readout = page.get_by_role("region", name="Throughput").get_by_role("img")
    expect(readout).to_have_attribute("aria-label", re.compile("appends/s"))
    for n in range(50):
        append(http, name, str(n))
    expect(readout).to_have_attribute("aria-label", re.compile(r": [1-9][\d,.]* appends/s"))
    expect(page.get_by_role("row", name=re.compile("^append"))).to_be_visible()


def test_the_overview_shows_how_far_the_pipelines_are_behind(
    open_ui: Open, http: httpx.Client
) -> None:
    def say(name: str, **more: object) -> dict[str, object]:
        value = {"state": "running", "rows": 12, "rows_per_sec": 4.0, "lag_rows": None, **more}
        told = {"lag_secs": 0.0, "last_error": None, "updated_at": time.time(), **value}
        headers = {"operation": "upsert"}
        return {"type": "pipeline", "key": name, "value": told, "headers": headers}

    page = open_ui()
    stream = "/pipelines/progress"
    http.put("/pipelines")
    silent = say("archive", updated_at=time.time() - 3600)
    http.put(stream, headers=JSON, json=[silent, say("stream-to-postgres", lag_secs=7.5)])
    row = page.get_by_role("row", name=re.compile("^stream-to-postgres"))
    expect(row).to_contain_text("7.50 s")
    expect(page.get_by_role("row", name=re.compile("^archive"))).to_contain_text("silent")
    http.post(stream, json=say("stream-to-postgres", lag_secs=0.25, lag_rows=1300))
    expect(row).to_contain_text("250.0 ms")
    expect(row).to_contain_text("1,300 messages")
    chart = page.get_by_role("region", name="Lag of stream-to-postgres").get_by_role("img")
    expect(chart).to_have_attribute("aria-label", re.compile("250.0 ms behind"))


def test_a_long_stream_shows_its_end_first_and_the_rest_on_demand(
    open_ui: Open, serve: Serve
) -> None:
    server = serve(DS_LIMITS__MAX_STREAM_BYTES="67108864", DS_LIMITS__MAX_MEMORY_BYTES="134217728")
    name, padding = fresh("long"), "x" * 400
    with client_of(server) as http:
        create(http, name)
        for first in range(0, 50_000, 10_000):
            batch = range(first, first + 10_000)
            append(http, name, compact([{"n": n, "padding": padding} for n in batch]))
    page = open_ui(place(name), server.url)
    await_live(page)
    assert max(numbers(page)) == 49_999
    earlier = page.get_by_role("button", name="earlier messages")
    expect(earlier).to_contain_text("30,000 earlier messages")
    earlier.click()
    expect(earlier).to_contain_text("10,000 earlier messages")
    page.get_by_role("button", name="Jump to the start").click()
    expect(page.locator(".preview", has_text='{"n":0,')).to_be_in_viewport()


def test_buckets_are_folders_whose_streams_come_and_go(open_ui: Open, http: httpx.Client) -> None:
    bucket = fresh("bucket").replace("/", "-")
    page = open_ui()
    page.get_by_role("button", name="Create a bucket").click()
    page.get_by_role("dialog").get_by_label("Name").fill(bucket)
    page.get_by_role("dialog").get_by_role("button", name="Create", exact=True).click()
    expect(tree_row(page, f"/{bucket}")).to_be_visible()
    http.put(f"/{bucket}/session 1", headers={"Content-Type": "application/json"})
    http.post(f"/{bucket}/session 1", json={"hello": "bucket"}).raise_for_status()
    tree_row(page, f"/{bucket}").click()
    tree_row(page, f"/{bucket}/session 1").click()
    expect(page.locator(".preview")).to_have_text(['{"hello":"bucket"}'])
    await_live(page)
    page.get_by_role("button", name="Fork", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Fork", exact=True).click()
    expect(page.locator(".stream-name")).to_have_text(f"/{bucket}/session 1-fork")
    expect(page.locator(".forks")).to_contain_text(f"/{bucket}/session 1")
    http.delete(f"/{bucket}/session 1-fork")
    expect(tree_row(page, f"/{bucket}/session 1-fork")).to_have_count(0)


def test_a_snapshot_is_published_viewed_and_previewed(open_ui: Open, http: httpx.Client) -> None:
    bucket = fresh("bucket").replace("/", "-")
    stream = f"/{bucket}/doc"
    http.put(f"/{bucket}")
    http.put(stream, headers={"Content-Type": "application/json"}, content="[1,2]")
    page = open_ui(place(stream))
    await_live(page)
    details = page.get_by_role("complementary", name="Details")
    expect(details.get_by_role("button", name="View", exact=True)).to_be_disabled()
    details.get_by_role("button", name="Publish").click()
    dialog = page.get_by_role("dialog", name="Publish a snapshot")
    dialog.get_by_label("Content", exact=True).fill('{"sum": 3, "<b>": "<script>"}')
    dialog.get_by_role("button", name="Publish").click()
    expect(details).to_contain_text("The latest stands at message 2")
    assert http.get(f"{stream}/snapshot", follow_redirects=True).json()["sum"] == 3
    http.post(stream, json=3).raise_for_status()
    expect(page.locator(".preview")).to_have_text(["1", "2", "3"])
    details.get_by_role("button", name="View", exact=True).click()
    expect(page.get_by_role("dialog", name="Snapshot")).to_contain_text('"<b>": "<script>"')
    page.keyboard.press("Escape")
    details.get_by_role("button", name="Bootstrap preview").click()
    preview = page.get_by_role("dialog", name="Bootstrap")
    expect(preview).to_contain_text("then 1 message")
    expect(preview).to_contain_text('"sum": 3')
    expect(preview.get_by_role("listitem")).to_have_text(["31 B"])
    page.keyboard.press("Escape")
    page.reload()
    expect(page.locator(".preview")).to_have_text(["3"])
    page.get_by_role("button", name="Jump to the start").click()
    expect(page.locator(".preview")).to_have_text(["3"])
