"""examples/llm_tokens.py: an answer arrives whole, whatever happens to the page meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.http.uvicorn import Uvicorn, assert_clean
from tests.ui.conftest import PATIENCE_MS

pytestmark = pytest.mark.slow

QUESTION = "one two three four five six seven"


def test_a_reload_and_a_lost_connection_in_the_middle_of_an_answer_lose_and_repeat_nothing(
    browser: Browser, tmp_path: Path
) -> None:
    settings = {"TOKEN_SECS": "0.05", "DS_SERVER__SSE_RECONNECT_INTERVAL_SECS": "0.3"}
    app = Uvicorn(tmp_path / "log", app="examples.llm_tokens:app", **settings)
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(app.url)
    page.locator("#question").fill(QUESTION)
    page.locator("#question").press("Enter")
    answer, status = page.locator("#answer"), page.locator("#status")
    expect(answer).to_contain_text("one two")
    page.reload()
    expect(answer).to_contain_text("one two three")
    context.set_offline(True)
    context.set_offline(False)
    second = context.new_page()
    second.goto(page.url)
    whole = " ".join([QUESTION] * 3)
    for tab in (page, second):
        expect(tab.locator("#status")).to_have_text("complete", timeout=PATIENCE_MS)
        assert tab.locator("#answer").text_content() == whole
    expect(status).to_have_text("complete")
    context.close()
    assert_clean(app, app.stop())
