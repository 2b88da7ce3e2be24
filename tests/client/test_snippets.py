"""The Python and JavaScript in the client's pages runs as it stands there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.server_process import ServerProcess
from tests.tree import markdown
from tests.tree.test_examples import (
    COMMAND_TIMEOUT_SECS,
    DOCUMENTED_ADDRESS,
    ELSEWHERE,
    examples,
    repeat,
)

PAGES = ("client.md", "quickstarts/notebook.md", "state.md", "writing-a-client.md")
INTERPRETERS = {"python": (sys.executable, ".py"), "js": (shutil.which("node"), ".mjs")}


def snippets(page: str, kind: str) -> str:
    """All blocks of one kind on a page, as one program."""
    text = (markdown.DOCS / page).read_text("utf-8")
    return "\n".join(fence.text for fence in markdown.fences(text) if fence.kind == kind)


CASES = [(page, kind) for page in PAGES for kind in INTERPRETERS if snippets(page, kind)]


@pytest.mark.parametrize(("page", "kind"), CASES)
def test_every_snippet_runs(page: str, kind: str, tmp_path: Path) -> None:
    interpreter, suffix = INTERPRETERS[kind]
    assert interpreter is not None, "the tests need Node"
    with ServerProcess() as server:
        address = server.url.partition("://")[2]
        program = tmp_path / f"snippets{suffix}"
        program.write_text(snippets(page, kind).replace(DOCUMENTED_ADDRESS, address), "utf-8")
        finished = subprocess.run(
            [interpreter, str(program)],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_SECS,
            check=False,
        )
    assert finished.returncode == 0, finished.stderr


def test_the_pages_hold_what_they_promise() -> None:
    assert ("writing-a-client.md", "js") in CASES
    assert {page for page, kind in CASES if kind == "python"} == set(PAGES)


@pytest.mark.slow
def test_the_sessions_of_the_command_line_are_real(tmp_path: Path) -> None:
    assert any(True for _ in examples(ELSEWHERE))
    repeat(ELSEWHERE, tmp_path)
