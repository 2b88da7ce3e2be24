"""The stream browser behind the stack's real Envoy, which wants a token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from headrace.stack.tokens import TokenKind
from headrace.testing.stack_process import StackProcess
from headrace.testing.waiting import DEADLINE_SECS
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


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackProcess]:
    directory: Path = tmp_path_factory.mktemp("stack") / "state"
    with StackProcess(directory) as running:
        yield running


@pytest.fixture
def signed(stack: StackProcess) -> Iterator[httpx.Client]:
    headers = stack.authorization()
    url = stack.address("envoy")
    with httpx.Client(base_url=url, timeout=DEADLINE_SECS, headers=headers) as client:
        yield client


def use_token(page: Page, token: str) -> None:
    dialog = page.get_by_role("dialog", name="Token")
    dialog.get_by_label("Bearer token").fill(token)
    dialog.get_by_role("button", name="Use token").click()


def test_a_token_is_asked_for_checked_by_envoy_and_kept_in_memory_only(
    open_ui: Open, stack: StackProcess, signed: httpx.Client
) -> None:
    name, bucket = fresh("secret"), "guarded"
    create(signed, name)
    append(signed, name, '"behind Envoy"')
    signed.put(f"/{bucket}").raise_for_status()
    signed.put(f"/{bucket}/doc", headers={"Content-Type": "text/plain"}).raise_for_status()
    page = open_ui(place(name), stack.address("envoy"))
    dialog = page.get_by_role("dialog", name="Token")
    expect(dialog).to_contain_text("wants to know who you are")
    for kind, said in ((TokenKind.EXPIRED, "expired"), (TokenKind.WRONG_AUDIENCE, "Audiences")):
        use_token(page, stack.token(kind))
        expect(dialog).to_contain_text("This token was refused")
        expect(dialog).to_contain_text(said)
    good = stack.token()
    use_token(page, good)
    await_live(page)
    expect(dialog).to_have_count(0)
    expect(page.locator(".preview")).to_have_text(['"behind Envoy"'])
    expect(tree_row(page, name)).to_be_visible()
    expect(tree_row(page, f"/{bucket}")).to_be_visible()
    append(signed, name, '"and live"')
    expect(page.locator(".preview")).to_have_text(['"behind Envoy"', '"and live"'])
    page.get_by_label("Message to append").fill('"from the page"')
    page.get_by_role("button", name="Append", exact=True).click()
    expect(page.locator(".preview").last).to_have_text('"from the page"')
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    lines(page).first.click()
    page.locator(".opened").get_by_role("button", name="curl").click()
    expect(page.locator(".toast").last).to_contain_text("Copied")
    command = page.evaluate("() => navigator.clipboard.readText()")
    assert '-H "Authorization: Bearer $TOKEN"' in command
    assert good not in command
    page.keyboard.press("Escape")
    page.keyboard.press("o")
    expect(page.get_by_role("region", name="Commit and sync")).to_be_visible()
    kept = page.evaluate("() => JSON.stringify([localStorage, sessionStorage, document.cookie])")
    assert good not in kept
    assert good not in page.content()
    page.reload()
    expect(dialog).to_be_visible()


def test_who_gives_no_token_is_asked_once_and_may_give_it_later(
    open_ui: Open, stack: StackProcess, signed: httpx.Client
) -> None:
    name = fresh("later")
    create(signed, name)
    page = open_ui(place(name), stack.address("envoy"))
    page.get_by_role("dialog", name="Token").get_by_role("button", name="Cancel").click()
    expect(live_button(page)).to_contain_text("Stopped")
    expect(page.locator(".view .notice")).to_contain_text("Jwt is missing")
    expect(page.locator(".list-summary")).to_contain_text("Jwt is missing")
    page.get_by_role("button", name="Token", exact=True).click()
    use_token(page, stack.token())
    await_live(page)
    expect(tree_row(page, name)).to_be_visible()
    assert signed.get(f"{ROOT}/{name}").status_code == 200
