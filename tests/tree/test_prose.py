"""Docstrings, comments, messages and pages use the words that readers already know.

Each phrase below was found by a reader who had to translate it. A hit is a sentence to write again:
say who does what ("the client", "the committer"), in the words of asyncio, Kafka or Postgres.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.tree import markdown
from tests.tree.markdown import ROOT

SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = markdown.pages()
HUNTED = re.compile(
    r"""\b(?:
        whoever | whom(?:ever)? | of\ which | by\ then | though\ there\ be | for\ certain
      | mended | told | beside | (?:is|are|was|were)\ away | set\ down | let\ go | looked\ at
      | hears?\ of | heard\ of | written\ down | stands? | stood
    )\b
    | (?<![Hh]ere\ )\b(?:is|are|was|were)\ no\ (?!longer\b|more\b)  # for "is not a"
    | (?:^|[.:;("#]\ ?)Who\ [a-z]+s\b  # a clause that stands for a person
    """,
    re.VERBOSE,
)
CODE = re.compile(r"`[^`]*`")
HEADING = re.compile(r"^#+ .*", re.MULTILINE)


def phrases(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines()):
        found = HUNTED.search(CODE.sub("", line))
        if found is not None:
            yield number, found[0].strip()


def prose_of_source(text: str) -> Iterator[tuple[int, str]]:
    """Comments and strings, f-strings included, with the line they begin at."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) or "FSTRING" in token_name(token):
            yield token.start[0], token.string


def token_name(token: tokenize.TokenInfo) -> str:
    return tokenize.tok_name[token.type]


def hits_in_source(text: str) -> list[str]:
    return [
        f"line {begin + number}: {phrase}"
        for begin, prose in prose_of_source(text)
        for number, phrase in phrases(prose)
    ]


def test_docstrings_comments_and_messages_have_no_phrase_of_the_hunt_list() -> None:
    found = {
        str(source.relative_to(ROOT)): hits
        for source in SOURCES
        if (hits := hits_in_source(source.read_text("utf-8")))
    }
    assert found == {}


def test_pages_have_no_phrase_of_the_hunt_list() -> None:
    found = {
        str(page.relative_to(ROOT)): hits
        for page in PAGES
        if (
            hits := [
                f"line {n + 1}: {p}" for n, p in phrases(HEADING.sub("", page.read_text("utf-8")))
            ]
        )
    }
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "# whoever asks is refused",
        '"""A batch of which nothing was written."""',
        'logger.warning("Postgres is away")',
        'f"{name} is no slot name"',
        '"""Who cancels is not asked again."""',
    ],
)
def test_a_phrase_is_noticed(text: str) -> None:
    assert hits_in_source(text) != []


@pytest.mark.parametrize(
    "text", ['"there is no stream"', "# it is no longer needed", "stands = told(beside)"]
)
def test_plain_english_and_names_are_allowed(text: str) -> None:
    assert hits_in_source(text) == []
