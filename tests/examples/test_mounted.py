"""The applications that README and docs/operating.md show serve streams where they say."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tree import markdown
from tests.tree.markdown import ROOT

PAGES = [page for page in markdown.pages() if "create_app" in page.read_text("utf-8")]


def program(page: Path) -> str:
    """The page's blocks about the application, as one program."""
    blocks = [
        fence.text
        for fence in markdown.fences(page.read_text("utf-8"))
        if fence.kind == "python" and "create_app" in fence.text
    ]
    assert blocks, f"{page.name} has no block of Python that creates an application"
    return "\n".join(blocks)


async def append_and_read(names: dict[str, Any], url: str) -> str:
    transport = httpx.ASGITransport(names["app"])
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        headers = {"Content-Type": "text/plain"}
        (await client.put(url, headers=headers, content="hello")).raise_for_status()
        answer = await client.get(url)
    await names["streams"].aclose()
    return answer.text


@pytest.mark.parametrize("page", PAGES, ids=markdown.name)
def test_an_application_of_the_documentation_serves_streams(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(program(page), names)
    assert asyncio.run(append_and_read(names, "/streams/v1/stream/a")) == "hello"


def test_the_readme_shows_one() -> None:
    assert ROOT / "README.md" in PAGES
