"""Modules that docs and comments name exist; architecture.md shows every package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.tree import markdown
from tests.tree.markdown import ROOT

SOURCE = ROOT / "src" / "headrace"
PACKAGES = frozenset(path.parent.name for path in SOURCE.glob("*/__init__.py"))
TREES = frozenset({"src", "tests", "bench", "tools", "examples", "bin"})
CODE_SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:[\w.-]+/)+[\w-]+(?:\.py)?")
FILE = re.compile(r"\w+\.py")
# A class after a package is Go's or Java's, or is exported by ours; `.toml` ends a file's name.
DOTTED = re.compile(r"(?:headrace\.)?(?!headrace\.)[a-z_]+\.(?!toml\b)[a-z_]+(?:\.\w+)*")
RUN = re.compile(r"python -m ((?:bench|tests|tools|headrace)[.\w]*)")


def is_there(path: Path) -> bool:
    return path.exists() or path.with_name(path.name + ".py").exists()


def stale(text: str) -> Iterator[str]:
    """What `text` calls a module of this repository, and which is not one."""
    for run in RUN.findall(text):
        module = run.replace(".", "/")
        if not (is_there(ROOT / module) or is_there(ROOT / "src" / module)):
            yield f"python -m {run}"
    for span in CODE_SPAN.findall(text):
        if FILE.fullmatch(span):
            found = any(next((ROOT / tree).rglob(span), None) for tree in TREES)
        elif PATH.fullmatch(span) and span.endswith(".py"):
            found = (ROOT / span).exists() or (SOURCE / span).exists()
        else:
            continue
        if not found:
            yield span


def stale_dotted(text: str) -> Iterator[str]:
    """`engine.slices` or `http/routes` in a docstring or comment."""
    for span in CODE_SPAN.findall(text):
        if not (DOTTED.fullmatch(span) or PATH.fullmatch(span)):
            continue
        package, *rest = (
            span.removeprefix("headrace.").removesuffix(".py").replace("/", ".").split(".")
        )
        if package in PACKAGES and not leads_to_a_module(package, rest):
            yield span


def leads_to_a_module(package: str, rest: list[str]) -> bool:
    """The names lead to a module or into one: `shapes.tables.TableSnapshot` names what is in it."""
    directory = SOURCE / package
    for name in rest:
        if not (directory / name).is_dir():
            return (directory / f"{name}.py").exists()
        directory /= name
    return True


def test_pages_name_modules_that_exist() -> None:
    found = {
        str(page.relative_to(ROOT)): names
        for page in markdown.pages()
        if (names := [*stale(page.read_text("utf-8"))])
    }
    assert found == {}


def test_comments_name_modules_that_exist() -> None:
    found = {
        str(source.relative_to(ROOT)): names
        for source in SOURCE.rglob("*.py")
        if (names := [*stale(text := source.read_text("utf-8")), *stale_dotted(text)])
    }
    assert found == {}


def test_the_architecture_page_names_modules_that_exist() -> None:
    assert [*stale_dotted((ROOT / "docs/architecture.md").read_text("utf-8"))] == []


def test_the_architecture_page_shows_every_package() -> None:
    rows = markdown.table_rows((ROOT / "docs/architecture.md").read_text("utf-8"))
    shown = {span for row in rows for span in CODE_SPAN.findall(row[0])}
    assert PACKAGES - shown == set()


def test_a_renamed_module_is_noticed() -> None:
    assert [*stale("see `http/nowhere.py`, `nowhere_at_all.py`, python -m bench.nowhere")] == [
        "python -m bench.nowhere",
        "http/nowhere.py",
        "nowhere_at_all.py",
    ]
    assert [*stale_dotted("`engine.nowhere` `engine/nowhere` `engine.engine.Engine`")] == [
        "engine.nowhere",
        "engine/nowhere",
    ]
