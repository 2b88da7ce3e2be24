"""What the tests of the stream browser say often."""

from __future__ import annotations

import json
import re
from itertools import count
from urllib.parse import quote

import httpx
from playwright.sync_api import Locator, Page, expect

ROOT = "/v1/stream"
JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
_numbers = count()


def fresh(prefix: str = "stream") -> str:
    """The name of a stream that no other test uses."""
    return f"ui/{prefix}-{next(_numbers)}"


def place(name: str) -> str:
    """Where the page shows a stream."""
    return f"#/stream/{quote(name)}"


def create(
    http: httpx.Client, name: str, content_type: str = "application/json", **more: str
) -> None:
    headers = {"Content-Type": content_type, **{k.replace("_", "-"): v for k, v in more.items()}}
    assert http.put(f"{ROOT}/{quote(name)}", headers=headers).status_code == 201


def append(
    http: httpx.Client, name: str, *messages: str, content_type: str = "application/json"
) -> str:
    """Append messages one by one; the offset after the last."""
    offset = ""
    for message in messages:
        answer = http.post(
            f"{ROOT}/{quote(name)}", headers={"Content-Type": content_type}, content=message
        )
        assert answer.status_code == 204, answer.text
        offset = answer.headers["stream-next-offset"]
    return offset


def compact(messages: list[dict[str, object]]) -> str:
    return json.dumps(messages, separators=(",", ":"))


def lines(page: Page) -> Locator:
    """The messages in sight."""
    return page.locator(".message-line")


def live_button(page: Page) -> Locator:
    return page.locator("button.live")


def await_live(page: Page) -> None:
    expect(live_button(page)).to_contain_text("Live")


def badge(page: Page, text: str) -> Locator:
    return page.locator(".badges").get_by_text(text, exact=True)


def tree_row(page: Page, path: str) -> Locator:
    return page.locator(f".tree-row[title='{path}']")


def previews(page: Page) -> list[str]:
    return page.locator(".message-line .preview").all_text_contents()


def numbers(page: Page) -> list[int]:
    shown = page.locator(".message-line .number").all_text_contents()
    return sorted(int(re.sub(r"\D", "", text)) for text in shown)
