"""The documentation as people see it: the site builds, is found by groups, and copies commands."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from playwright.sync_api import Browser

from tests.tree.markdown import ROOT
from tests.ui.conftest import PATIENCE_MS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning is an error."""
    directory = tmp_path_factory.mktemp("site")
    mkdocs = Path(sys.executable).with_name("mkdocs")
    built = subprocess.run(
        [mkdocs, "build", "--strict", "--quiet", "--site-dir", directory],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return directory


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site_url(site: Path) -> Iterator[str]:
    handler = partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_the_site_builds_without_a_warning(site: Path) -> None:
    assert (site / "index.html").is_file()
    assert "Quick starts" in (site / "index.html").read_text("utf-8")


def test_the_navigation_is_in_groups_that_can_be_looked_through() -> None:
    groups = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    assert all(isinstance(pages, list) for group in groups for pages in group.values())
    sizes = {name: len(pages) for group in groups for name, pages in group.items()}
    assert [name for name, size in sizes.items() if size > 8] == []


def test_the_copy_button_copies_commands_without_prompt_and_output(
    browser: Browser, site_url: str
) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{site_url}/protocol/")
    block = page.locator(".language-console", has_text="subscriptions/mailer").first
    block.scroll_into_view_if_needed()
    block.hover()
    block.locator("[data-clipboard-target]").click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text !== '')")
    copied = page.evaluate("navigator.clipboard.readText()").splitlines()
    context.close()
    assert copied[0].startswith("curl -X PUT http://localhost:4437/v1/stream/wakes")
    assert copied[1].endswith("\\"), "a command that goes on in the next line"
    assert copied[2].lstrip().startswith("-H")
    assert not [line for line in copied if line.startswith(("$", ">", "{", "["))]
