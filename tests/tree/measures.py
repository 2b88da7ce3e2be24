"""`python -m tests.tree.measures [PACKAGE_DIR]`: how the code reads, in figures.

Prints for each package what CONTRIBUTING.md asks for: short modules, short functions, annotations,
comments where there is something to explain, and names that mean one thing. A figure is a place to
look, not a verdict, so nothing is asserted here.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from tests.tree.markdown import ROOT

_HEADINGS = (
    "package",
    "modules",
    "lines",
    "median",
    "function",
    "p90",
    "annot.",
    "comments",
    "docs",
)


# State machines and recovery: what CONTRIBUTING.md wants explained line by line.
HARD = (
    "engine/fan_out.py",
    "engine/fork_tree.py",
    "engine/reclaim.py",
    "engine/removal.py",
    "http/connections/connection.py",
    "postgres/slots.py",
    "protocol/producers.py",
    "protocol/stream.py",
    "spark/streams/offset_tracker.py",
    "stack/supervisor.py",
    "storage/acid/rollback_guard.py",
    "storage/committer.py",
    "storage/file/catalog.py",
    "storage/file/checkpoint.py",
    "storage/file/checkpoint_scheduler.py",
    "storage/file/doublewrite.py",
    "storage/file/journal.py",
    "storage/file/pack_allocator.py",
    "storage/file/replay.py",
    "subscriptions/dispatcher.py",
    "subscriptions/model.py",
)


@dataclass(frozen=True)
class Module:
    """One source file, counted. `comments` and `doc_lines` are not part of `code_lines`."""

    path: Path
    lines: int
    code_lines: int
    comments: int
    doc_lines: int
    functions: tuple[int, ...]
    annotated: int
    classes: tuple[str, ...]


def measure(path: Path) -> Module:
    text = path.read_text()
    tree = ast.parse(text)
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    comments = sum(
        token.type == tokenize.COMMENT
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )
    doc_lines = sum(_docstring_lines(node) for node in ast.walk(tree))
    lines = text.splitlines()
    blank = sum(not line.strip() for line in lines)
    own_line = sum(line.lstrip().startswith("#") for line in lines)
    return Module(
        path=path,
        lines=len(lines),
        code_lines=len(lines) - blank - own_line - doc_lines,
        comments=comments,
        doc_lines=doc_lines,
        functions=tuple(_length(node) for node in functions),
        annotated=sum(_is_annotated(node) for node in functions),
        classes=tuple(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)),
    )


def _docstring_lines(node: ast.AST) -> int:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return 0
    first = node.body[0] if node.body else None
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    if first is None or not is_text or ast.get_docstring(node) is None:
        return 0
    return _length(first)


def _length(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _is_annotated(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    named = [each for each in arguments if each.arg not in ("self", "cls")]
    return node.returns is not None and all(each.annotation for each in named)


def _rows(modules: list[Module], root: Path) -> Iterator[tuple[str, ...]]:
    packages: dict[str, list[Module]] = defaultdict(list)
    for module in modules:
        packages[str(module.path.parent.relative_to(root))].append(module)
    for name in sorted(packages):
        yield _row(name, packages[name])
    yield _row("all", modules)


def _row(name: str, modules: list[Module]) -> tuple[str, ...]:
    functions = [length for module in modules for length in module.functions] or [0]
    code_lines = sum(module.code_lines for module in modules) or 1
    long = quantiles(functions, n=10)[-1] if len(functions) > 1 else functions[0]
    annotated = sum(module.annotated for module in modules)
    comments = sum(module.comments for module in modules)
    doc_lines = sum(module.doc_lines for module in modules)
    return (
        name,
        str(len(modules)),
        str(sum(module.lines for module in modules)),
        f"{median(module.lines for module in modules):.0f}",
        f"{median(functions):.0f}",
        f"{long:.0f}",
        f"{100 * annotated / max(1, sum(len(module.functions) for module in modules)):.0f} %",
        f"{100 * comments / code_lines:.1f}",
        f"{100 * doc_lines / code_lines:.1f}",
    )


def _hard_rows(modules: list[Module], root: Path) -> Iterator[tuple[str, ...]]:
    """Comments, and comments with docstrings, per 100 lines of code of each hard module."""
    yield "hard module", "lines", "comments", "with docs"
    for module in modules:
        name = module.path.relative_to(root).as_posix()
        if name in HARD:
            per_line = 100 / module.code_lines
            explained = (module.comments + module.doc_lines) * per_line
            yield name, str(module.lines), f"{module.comments * per_line:.1f}", f"{explained:.1f}"


def _repeated(names: list[str]) -> str:
    again = [(name, count) for name, count in Counter(names).most_common() if count > 1]
    listed = ", ".join(f"{name} ×{count}" for name, count in again)
    return f"{len(again)} names serve {sum(count for _, count in again)}: {listed}"


def main(root: Path) -> None:
    modules = [measure(path) for path in sorted(root.rglob("*.py")) if path.stat().st_size]
    widths = (24, 8, 8, 7, 9, 5, 7, 9, 6)
    for row in [_HEADINGS, *_rows(modules, root)]:
        cells = zip(row, widths, strict=True)
        print("".join(c.ljust(w) if c is row[0] else c.rjust(w) for c, w in cells).rstrip())
    print(
        "\ncomments and docs: per 100 lines of code; median: lines of a module; function: lines\n"
    )
    for name, *figures in _hard_rows(modules, root):
        print(name.ljust(40) + "".join(figure.rjust(10) for figure in figures))
    stems = [module.path.stem for module in modules if module.path.stem != "__init__"]
    print(f"\nfile names that repeat: {_repeated(stems)}")
    classes = [name for module in modules for name in module.classes if not name.startswith("_")]
    print(f"\nclass names that repeat: {_repeated(classes)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src" / "headrace")
