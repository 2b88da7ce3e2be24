"""Modules and names that docs and comments use exist; architecture.md shows every package."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.tree import markdown, measures
from tests.tree.markdown import ROOT

SOURCE = ROOT / "src" / "headrace"
PACKAGES = frozenset(path.parent.name for path in SOURCE.glob("*/__init__.py"))
TREES = frozenset({"src", "tests", "bench", "tools", "examples", "bin"})
CODE_SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:[\w.-]+/)+[\w-]+(?:\.py)?")
FILE = re.compile(r"\w+\.py")
# A class after a package is Go's or Java's, or is exported by ours; `.toml` ends a file's name.
DOTTED = re.compile(r"(?:headrace\.)?(?!headrace\.)[a-z_]+\.(?!(?:toml|json)\b)[a-z_]+(?:\.\w+)*")
BARE = re.compile(r"`([a-z_]+)`")
WORD = re.compile(r"[A-Za-z_]+")
# Of Postgres, of Python and its library, and a misspelling that the text is about.
FOREIGN = frozenset({"numeric", "_replace", "serve_forever", "debgu"})
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


@dataclass
class Names:
    """The names in one source file: used anywhere, said in backticks, and words of its strings."""

    used: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)
    words: set[str] = field(default_factory=set)


def names_in(text: str) -> Names:
    found = Names()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            found.used.add(token.string)
        elif token.type == tokenize.COMMENT or '"""' in token.string:
            found.said += BARE.findall(token.string)
        elif token.type == tokenize.STRING:
            found.words.update(WORD.findall(token.string))
    return found


def defined_in(tree: ast.AST) -> Iterator[str]:
    """Functions, classes, attributes and constants: what another file may speak of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        if isinstance(node, ast.Module | ast.ClassDef):
            for statement in node.body:
                targets = statement.targets if isinstance(statement, ast.Assign) else []
                if isinstance(statement, ast.AnnAssign):
                    targets = [statement.target]
                yield from (target.id for target in targets if isinstance(target, ast.Name))


@cache
def known_names() -> frozenset[str]:
    """What the package defines, its modules, and the words of its strings: keys, files, SQL."""
    found = set(FOREIGN)
    for source in SOURCE.rglob("*.py"):
        text = source.read_text("utf-8")
        found |= {source.stem, source.parent.name, *defined_in(ast.parse(text))}
        found |= names_in(text).words
    return frozenset(found)


def stale_bare(text: str) -> list[str]:
    """`targets` in a docstring, where neither this file nor the package has such a name."""
    names = names_in(text)
    return sorted({name for name in names.said if name not in known_names() | names.used})


def test_comments_use_names_that_exist() -> None:
    found = {
        str(source.relative_to(ROOT)): names
        for source in SOURCE.rglob("*.py")
        if (names := stale_bare(source.read_text("utf-8")))
    }
    assert found == {}


def test_the_bare_name_of_a_deleted_module_is_noticed() -> None:
    text = '"""To an address that `masthead` has checked, see `callback_urls` and `x`."""\nx = 1\n'
    assert stale_bare(text) == ["masthead"]


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


def test_the_measured_hard_modules_exist() -> None:
    assert [name for name in measures.HARD if not (SOURCE / name).exists()] == []
