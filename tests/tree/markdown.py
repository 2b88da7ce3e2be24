"""What the tests of the tree need to know about Markdown: fences, links, anchors, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_DEFINITION = re.compile(r"^\[([^\]]+)\]:\s*(\S+)", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Fence:
    """A fenced block: the word after the backticks, its text, the line it starts on."""

    kind: str
    text: str
    line: int


def pages() -> list[Path]:
    """The Markdown a reader of the project meets."""
    return sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def fences(text: str) -> Iterator[Fence]:
    for match in _FENCE.finditer(text):
        yield Fence(match[1], match[2], text.count("\n", 0, match.start()) + 1)


def prose(text: str) -> str:
    """The text without its fenced blocks, which hold no links and no headings."""
    return _FENCE.sub("", text)


def links(text: str) -> list[str]:
    without_code = re.sub(r"`[^`\n]*`", "", prose(text))
    return _LINK.findall(without_code) + list(definitions(text).values())


def definitions(text: str) -> dict[str, str]:
    """Reference link definitions: `[label]: target`."""
    return dict(_DEFINITION.findall(prose(text)))


def anchors(text: str) -> set[str]:
    """The fragment of every heading, as GitHub and MkDocs both make them for plain words."""
    return {slug(heading) for heading in _HEADING.findall(prose(text))}


def slug(heading: str) -> str:
    plain = re.sub(r"[`*]", "", heading).lower()
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", plain)).strip("-")


def table_rows(text: str) -> Iterator[list[str]]:
    """The cells of every table row, headings and rules left out."""
    lines = prose(text).splitlines()
    for index, line in enumerate(lines):
        follows_rule = any(_is_rule(above) for above in _table_above(lines, index))
        if line.startswith("|") and not _is_rule(line) and follows_rule:
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def _table_above(lines: list[str], index: int) -> Iterator[str]:
    while index > 0 and lines[index - 1].startswith("|"):
        index -= 1
        yield lines[index]


def _is_rule(line: str) -> bool:
    return re.fullmatch(r"\|[\s|:-]+\|", line.strip()) is not None
