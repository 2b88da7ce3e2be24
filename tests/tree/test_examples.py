"""Every example in the documentation runs, and prints what the page says it prints.

The convention: in a ```console block, a line that starts with `$ ` is a command (`> ` continues
it), and the lines up to the next command are its whole standard output. `...` stands for anything:
within a line, or, alone on a line, for any number of lines. Commands of one page run in order
against one fresh server, which the page calls localhost:4437. Other kinds of block are not run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.testing.server_process import ServerProcess
from tests.tree import markdown

DOCUMENTED_ADDRESS = "localhost:4437"
COMMAND_TIMEOUT_SECS = 60


@dataclass
class Example:
    """One command, the output shown below it, and the line it stands on."""

    command: str
    line: int
    shown: list[str] = field(default_factory=list)


def examples(page: Path) -> Iterator[Example]:
    for fence in markdown.fences(page.read_text("utf-8")):
        if fence.kind == "console":
            yield from examples_in(fence)


def examples_in(fence: markdown.Fence) -> list[Example]:
    found: list[Example] = []
    for number, text in enumerate(fence.text.splitlines(), fence.line + 1):
        if text.startswith("$ "):
            found.append(Example(text[2:], number))
        elif text.startswith("> ") and not found[-1].shown:
            found[-1].command += "\n" + text[2:]
        else:
            assert found, f"line {number}: output before the first command"
            found[-1].shown.append(text)
    return found


# Dozens of commands of our own, each a process that starts: tests/client runs it among the slow.
ELSEWHERE = markdown.DOCS / "cli.md"
PAGES = [
    page for page in markdown.pages() if page != ELSEWHERE and any(True for _ in examples(page))
]


def pattern(shown: list[str]) -> str:
    """The shown output as a regular expression over the whole of the real one."""
    lines = []
    for line in shown:
        anything = re.escape(line).replace(re.escape("..."), ".*")
        lines.append(r"(?:.*\n)*?" if line == "..." else anything + r"\n")
    return "".join(lines)


def normalise(output: str) -> str:
    stripped = output.replace("\r\n", "\n").rstrip()
    return stripped + "\n" if stripped else ""


def run(command: str, address: str, directory: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return subprocess.run(
        ["/bin/sh", "-c", command.replace(DOCUMENTED_ADDRESS, address)],
        cwd=directory,
        # Profiles are kept in the user's configuration, which is not to be touched.
        env=os.environ
        | {"XDG_CONFIG_HOME": str(directory / ".config")}
        | {"PATH": path, "NO_COLOR": "1", "COLUMNS": "100", "HEADRACE_URL": f"http://{address}"},
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_SECS,
        check=False,
    )


def test_the_readme_has_a_session_to_run() -> None:
    assert markdown.ROOT / "README.md" in PAGES


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples use curl")
@pytest.mark.parametrize("page", PAGES, ids=markdown.name)
def test_every_console_block_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    repeat(page, tmp_path)


def repeat(page: Path, tmp_path: Path) -> None:
    """Run what a page shows, and compare."""
    with ServerProcess() as server:
        address = server.url.partition("://")[2]
        for example in examples(page):
            finished = run(example.command, address, tmp_path)
            printed = normalise(finished.stdout.replace(address, DOCUMENTED_ADDRESS))
            where = f"{markdown.name(page)}:{example.line}: {example.command}"
            assert finished.returncode == 0, f"{where}\n{printed}{finished.stderr}"
            assert re.fullmatch(pattern(example.shown), printed), f"{where}\nprinted:\n{printed}"


def test_a_difference_from_the_shown_output_is_noticed() -> None:
    shown = ["HTTP/1.1 200 OK", "...", "ETag: ...", "...", "", "hello"]
    assert re.fullmatch(pattern(shown), 'HTTP/1.1 200 OK\nA: b\nETag: "x"\n\nhello\n')
    assert not re.fullmatch(pattern(shown), "HTTP/1.1 200 OK\nA: b\n\nhello\n")
    assert not re.fullmatch(pattern(shown), 'HTTP/1.1 200 OK\nETag: "x"\n\nhello\nmore\n')
    assert not re.fullmatch(pattern([]), "something\n")
