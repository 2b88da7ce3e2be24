"""Reading at the stream browser: conversations as turns, rows whole, fields filtered, buckets."""

from __future__ import annotations

import json
import re

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.ui.conftest import Open
from tests.ui.helpers import ROOT, append, await_live, compact, create, fresh, lines, place

pytestmark = pytest.mark.slow


def say(http: httpx.Client, name: str, *messages: object) -> None:
    append(http, name, *(json.dumps(message) for message in messages))


def turns(page: Page) -> Locator:
    return page.get_by_role("list", name="Transcript").locator(":scope > .turn")


def mode(page: Page, name: str) -> Locator:
    return page.get_by_role("group", name="Show", exact=True).get_by_role("button", name=name)


def test_tokens_of_an_agent_session_add_up_as_they_arrive(
    open_ui: Open, http: httpx.Client
) -> None:
    """The parts of an AI SDK message stream, one stream message each."""
    name = fresh("agent")
    create(http, name)
    asked = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Is it cold?"}]}
    say(
        http,
        name,
        asked,
        {"type": "start", "messageId": "m1"},
        {"type": "text-start", "id": "0"},
        {"type": "text-delta", "id": "0", "delta": "Let me "},
    )
    page = open_ui(place(name))
    await_live(page)
    expect(mode(page, "Transcript")).to_have_attribute("aria-pressed", "true")
    expect(turns(page).locator(".role")).to_have_text(["user", "assistant"])
    answer = turns(page).nth(1)
    expect(answer.locator(".said")).to_have_text("Let me ")
    expect(answer.locator(".caret")).to_be_attached()
    say(http, name, {"type": "text-delta", "id": "0", "delta": "look."})
    expect(answer.locator(".said")).to_have_text("Let me look.")
    call = {"toolCallId": "c1"}
    say(
        http,
        name,
        {"type": "tool-input-start", "toolName": "weather", **call},
        {"type": "tool-input-delta", "inputTextDelta": '{"city":', **call},
    )
    tool = answer.locator("details.tool")
    expect(tool).to_contain_text("input …")
    tool.locator("summary").click()
    expect(tool.get_by_label("Input")).to_have_text('{"city":')
    say(http, name, {"type": "tool-input-available", "input": {"city": "Bern"}, **call})
    expect(tool).to_contain_text("called")
    expect(tool.get_by_label("Input")).to_have_text('{\n  "city": "Bern"\n}')
    say(
        http,
        name,
        {"type": "tool-output-available", "output": {"celsius": -3}, **call},
        {"type": "text-start", "id": "0"},  # the id of an earlier part, for another
        {"type": "text-delta", "id": "0", "delta": "Yes:\n```\n-3 °C\n```"},
        {"type": "finish"},
    )
    expect(tool).to_contain_text("done")
    expect(tool.get_by_label("Output")).to_contain_text('"celsius": -3')
    expect(answer.locator(".said").last.locator("pre")).to_have_text("-3 °C")
    expect(answer.locator(".caret")).to_have_count(0)
    answer.get_by_role("button", name="#1–11").click()
    expect(page.locator(".message.open .payload")).to_contain_text('"messageId": "m1"')


CHUNK = {"object": "chat.completion.chunk", "id": "x"}


def delta(**delta: object) -> dict[str, object]:
    finish = delta.pop("finish", None)
    return {**CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


SHAPES: dict[str, tuple[object, ...]] = {
    "openai": (
        {"role": "user", "content": "Is it cold?"},
        delta(role="assistant", content=""),
        delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "weather"}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"city":'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '"Bern"}'}}]),
        delta(finish="tool_calls"),
        {"role": "tool", "tool_call_id": "c", "content": "-3"},
        {**delta(content="Ye"), "id": "y"},
        {**delta(content="s."), "id": "y"},
    ),
    "anthropic": (
        {"role": "user", "content": "Is it cold?"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "B"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "-3"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
    ),
    "rows": (
        {
            "type": "message",
            "key": "1",
            "value": {"role": "user", "content": "Is it cold?"},
            "headers": {"operation": "insert"},
        },
        {
            "type": "message",
            "key": "2",
            "operation": "set",
            "value": {
                "role": "assistant",
                "parts": [
                    {
                        "type": "tool-weather",
                        "toolCallId": "c",
                        "input": {"city": "Bern"},
                        "output": "-3",
                    }
                ],
            },
        },
        {
            "type": "message",
            "key": "3",
            "operation": "set",
            "value": {"role": "assistant", "content": "Ye"},
        },
        {"type": "message", "key": "3", "operation": "append", "value": {"content": "s."}},
        {
            "type": "message",
            "key": "4",
            "operation": "set",
            "value": {"role": "user", "content": "no"},
        },
        {"type": "message", "key": "4", "operation": "remove"},
    ),
    "ag-ui": (
        {"role": "user", "content": "Is it cold?"},
        {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "weather"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": '{"city":"Bern"}'},
        {"type": "TOOL_CALL_RESULT", "toolCallId": "c", "content": "-3"},
        {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "Ye"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "s."},
        {"type": "RUN_FINISHED"},
    ),
}


def test_one_conversation_reads_alike_in_every_shape(open_ui: Open, http: httpx.Client) -> None:
    page = open_ui()
    for shape, messages in SHAPES.items():
        name = fresh(shape)
        create(http, name)
        append(http, name, json.dumps(messages))
        page.evaluate("hash => { location.hash = hash }", place(name))
        expect(page.locator(".stream-name")).to_have_text(name)
        expect(turns(page).locator(".role")).to_have_text(["user", "assistant", "assistant"])
        expect(turns(page).locator(".said")).to_have_text(["Is it cold?", "Yes."])
        tool = turns(page).locator("details.tool")
        expect(tool.locator("code").first).to_have_text("weather")
        tool.locator("summary").click()
        expect(tool.get_by_label("Output")).to_have_text("-3")
        expect(page.locator(".transcript-tools")).to_have_text("3 turns")


def test_a_transcript_is_offered_and_never_forced(open_ui: Open, http: httpx.Client) -> None:
    chat, other, tokens = fresh("chat"), fresh("events"), fresh("tokens")
    create(http, chat)
    create(http, other)
    create(http, tokens, "text/plain")
    say(http, chat, {"role": "user", "content": "hello"})
    say(http, other, {"type": "finish"}, {"type": "order", "role": "none"})
    append(http, tokens, "Hel", "lo.", content_type="text/plain")
    page = open_ui(place(chat))
    expect(turns(page)).to_have_count(1)
    mode(page, "Messages").click()
    say(http, chat, {"role": "user", "content": "again"})
    expect(lines(page)).to_have_count(2)
    page.keyboard.press("v")
    page.keyboard.press("v")
    expect(turns(page)).to_have_count(2)
    page.evaluate("hash => { location.hash = hash }", place(other))
    expect(lines(page)).to_have_count(2)
    mode(page, "Transcript").click()
    expect(page.locator(".transcript")).to_contain_text("No chat or agent messages are recognised")
    page.evaluate("hash => { location.hash = hash }", place(tokens))
    expect(lines(page)).to_have_count(2)
    expect(mode(page, "State")).to_be_hidden()
    mode(page, "Transcript").click()
    expect(turns(page).locator(".said")).to_have_text("Hello.")


def change(key: str, value: dict[str, object], operation: str = "update") -> dict[str, object]:
    return {"type": "user", "key": key, "value": value, "headers": {"operation": operation}}


def test_a_row_of_the_state_opens_whole_and_follows_its_changes(
    open_ui: Open, http: httpx.Client
) -> None:
    name = fresh("rows")
    create(http, name)
    long = "x" * 500
    say(http, name, change("1", {"name": "Ann"}), change("2", {"name": "Bob", "bio": long}))
    page = open_ui(place(name))
    await_live(page)
    mode(page, "State").click()
    row = page.get_by_role("region", name="Row", exact=True)
    page.get_by_role("button", name="1", exact=True).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    value = row.get_by_label("Value")
    expect(value).to_contain_text(long)
    expect(row).to_contain_text("1 change")
    say(http, name, change("2", {"name": "Bert", "bio": {"deep": ["ly"]}}))
    expect(value).to_contain_text('"deep": [\n      "ly"')
    expect(row).to_contain_text("update #2 · 2 changes")
    say(http, name, {"type": "user", "key": "2", "headers": {"operation": "delete"}})
    expect(row).to_contain_text("deleted")
    page.get_by_role("cell", name="Ann").click()
    expect(value).to_contain_text('"Ann"')
    page.keyboard.press("Escape")
    expect(row).to_be_hidden()
    expect(page.get_by_role("button", name="1", exact=True)).to_be_focused()


def test_messages_are_filtered_by_their_fields(open_ui: Open, http: httpx.Client) -> None:
    name = fresh("filter")
    create(http, name)
    orders: list[dict[str, object]] = [
        {"order": {"total": n, "items": [{"sku": f"H-{n}"}]}, "role": ("user", "bot")[n % 2]}
        for n in range(200)
    ]
    append(http, name, compact(orders), '"no object"')
    page = open_ui(place(name))
    await_live(page)
    page.keyboard.press("f")
    box, found = page.get_by_label("Search messages"), page.locator(".found")
    for asked, said in (
        ("$.order.total > 100", "99 of 201"),
        ('$.role == "user" && $.order.total < 10', "5 of 201"),
        ("$.order.items[*].sku contains 'h-19'", "11 of 201"),
        ("not $.order", "1 of 201"),
        ("total", "200 of 201"),
    ):
        box.fill(asked)
        expect(found).to_have_text(said)
    box.fill("$.order.total > 100")
    append(http, name, '{"order":{"total":1000}}')
    expect(found).to_have_text("100 of 202")
    for wrong, why in (
        ("$.order.total >", "Expected a value"),
        ("$.role == user", 'A text needs quotes: == "user" (character 11).'),
        ('$.role == "us', "The text that begins at character 11 has no closing quote."),
        ("($.a", "Expected “)”"),
        ("$.a 5", "Expected an operator"),
    ):
        box.fill(wrong)
        expect(page.locator(".find-problem")).to_contain_text(why)
        expect(box).to_have_attribute("aria-invalid", "true")
        expect(found).to_have_text("")
    page.keyboard.press("Escape")
    expect(page.locator(".find-problem")).to_have_text("")


def test_a_bucket_has_a_page_of_its_streams_rates_snapshots_and_changes(
    open_ui: Open, http: httpx.Client
) -> None:
    bucket = fresh("page").replace("/", "-")
    http.put(f"/{bucket}").raise_for_status()
    for id, messages in (("one", [1]), ("two", [1, 2, 3])):
        http.put(f"/{bucket}/{id}", json=messages).raise_for_status()
    offset = http.head(f"/{bucket}/two").headers["stream-next-offset"]
    http.put(f"/{bucket}/two/snapshot/{offset}", json={}).raise_for_status()
    page = open_ui()
    page.get_by_role("tree").get_by_text(f"/{bucket}").click()
    table = page.get_by_role("table", name="Streams of the bucket")
    two = table.get_by_role("row", name=re.compile("two"))
    expect(two).to_contain_text("at 3")
    expect(page.locator(".bucket .tile", has_text="Messages")).to_contain_text("4")
    http.post(f"/{bucket}/one", json=[1, 2]).raise_for_status()
    http.put(f"/{bucket}/three", json=[]).raise_for_status()
    http.delete(f"/{bucket}/two").raise_for_status()
    feed = page.locator(".feed")
    for said in ("2 messages", "created", "deleted"):
        expect(feed).to_contain_text(said)
    expect(two).to_have_count(0)
    expect(table.get_by_role("row", name=re.compile("one")).locator(".number").first).to_have_text(
        "3"
    )
    appends = page.locator(".bucket").get_by_role("region", name="Appends").get_by_role("img")
    expect(appends).to_have_attribute("aria-label", re.compile("per second"))
    table.get_by_role("button", name="three").click()
    await_live(page)
    expect(page.locator(".stream-name")).to_have_text(f"/{bucket}/three")
    page.go_back()
    page.get_by_role("button", name="New stream").click()
    expect(page.get_by_role("dialog").locator("[name=name]")).to_have_value(f"/{bucket}/")
    page.keyboard.press("Escape")
    for id in ("one", "three"):
        http.delete(f"/{bucket}/{id}").raise_for_status()
    page.locator(".bucket").get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete bucket").click()
    expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()
    assert http.get(f"/{bucket}").status_code == 404


def test_the_answer_of_a_sse_endpoint_is_a_transcript_too(
    open_ui: Open, http: httpx.Client
) -> None:
    """What an AI SDK route streams, kept as it is: `data: {...}` in a stream of text."""
    name = fresh("sse")
    create(http, name, "text/plain")
    part = 'data: {"type":"text-delta","id":"0","delta":"%s"}\n\n'
    end = 'data: {"type":"finish"}\n\ndata: [DONE]\n\n'
    append(http, name, part % "Hel", (part % "lo") + end, content_type="text/plain")
    page = open_ui(place(name))
    expect(turns(page).locator(".said")).to_have_text("Hello")
    assert "Hel" in http.get(f"{ROOT}/{name}").text
