"""The stream browser as files: how /ui is served, and what the files may not contain."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

import headrace.ui
from tests.conftest import Serve
from tests.http.helpers import client_of, problem_of

FILES = Path(headrace.ui.__file__).parent
SCRIPTS = sorted(FILES.glob("*.js"))
IMPORT = re.compile(r'from "\./([\w-]+\.js)"')
NAMED = re.compile(r'(?:href|src)="([\w.-]+)"')
# Whatever turns a string into markup, code or an address to go to.
DANGEROUS = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "createContextualFragment",
    "DOMParser",
    "srcdoc",
    "eval(",
    "new Function",
    "javascript:",
)


def test_ui_leads_to_the_page_wherever_the_server_is_mounted(http: httpx.Client) -> None:
    moved = http.get("/ui")
    assert moved.status_code == 308
    assert moved.headers["location"] == "ui/"
    page = http.get("/ui", follow_redirects=True)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>Headrace</title>" in page.text


def test_every_file_that_the_page_names_is_served(http: httpx.Client) -> None:
    index = (FILES / "index.html").read_text("utf-8")
    named = set(NAMED.findall(index))
    for script in SCRIPTS:
        named.update(IMPORT.findall(script.read_text("utf-8")))
    assert {"app.js", "stream-view.js", "theme.css", "icon.svg"} <= named
    for name in sorted(named):
        assert http.get(f"/ui/{name}").status_code == 200, name


@pytest.mark.parametrize("path", ["/ui/", "/ui/app.js", "/ui/theme.css", "/ui/settings.json"])
def test_the_policy_lets_nothing_run_but_the_pages_own_files(http: httpx.Client, path: str) -> None:
    headers = http.get(path).headers
    policy = {
        directive.split()[0]: directive.split()[1:]
        for directive in headers["content-security-policy"].split("; ")
    }
    assert policy["default-src"] == ["'none'"]
    for directive in ("script-src", "style-src", "connect-src"):
        assert policy[directive] == ["'self'"]
    for directive in ("base-uri", "form-action", "frame-ancestors", "trusted-types"):
        assert policy[directive] == ["'none'"]
    assert policy["require-trusted-types-for"] == ["'script'"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_page_has_no_inline_script_and_no_inline_style() -> None:
    index = (FILES / "index.html").read_text("utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)", index) == []
    assert "<style" not in index
    assert re.findall(r"\s(?:style|on\w+)=", index) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_script_makes_markup_or_code_of_a_string(script: Path) -> None:
    text = script.read_text("utf-8")
    assert [danger for danger in DANGEROUS if danger in text] == []


def test_a_copy_that_is_current_is_not_sent_again(http: httpx.Client) -> None:
    first = http.get("/ui/app.js")
    assert first.headers["cache-control"] == "no-cache"
    again = http.get("/ui/app.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = http.get("/ui/app.js", headers={"If-None-Match": '"something else"'})
    assert other.content == first.content


def test_head_says_what_get_would(http: httpx.Client) -> None:
    head, got = http.head("/ui/app.js"), http.get("/ui/app.js")
    assert head.headers["content-length"] == str(len(got.content))
    assert head.headers["etag"] == got.headers["etag"]
    assert head.content == b""


def test_the_page_learns_where_the_streams_are(serve: Serve) -> None:
    with client_of(serve(DS_SERVER__STREAM_ROOT="/elsewhere/streams")) as client:
        assert client.get("/ui/settings.json").json()["streamRoot"] == "/elsewhere/streams"


def test_files_are_read_only_and_others_do_not_exist(http: httpx.Client) -> None:
    assert problem_of(http.post("/ui/")) == "method-not-allowed"
    for path in ("/ui/__init__.py", "/ui/%2e%2e/settings.py", "/ui/nothing.js"):
        assert problem_of(http.get(path)) == "not-found", path


def test_it_can_be_switched_off(serve: Serve) -> None:
    with client_of(serve(DS_SERVER__UI="false")) as client:
        for path in ("/ui", "/ui/", "/ui/app.js"):
            assert problem_of(client.get(path)) == "not-found"
