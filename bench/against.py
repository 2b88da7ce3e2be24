"""`python -m bench against --commit COMMIT`: this tree and an earlier commit, alternated.

Answers one question: did appends become slower? The earlier commit is compiled as `make compiled`
does it and runs on the packages of this environment, so both differ in nothing but our own code.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench import machine, results
from bench.results import RowResult
from bench.rows import ROWS
from bench.rows.base import Budget, Row
from bench.rows.durable import DURABLE
from bench.runner import generate
from bench.servers import KINDS, STORING, ServerError, ServerKind, build, running
from bench.table import notes, number

NOW = "now"
BUILDS = machine.REPOSITORY / "bench" / ".tmp" / "builds"  # mypy and git leave .tmp alone
COMPARED_BY_DEFAULT = (
    "append-c64-s1",
    "append-c64-s1000",
    "durable-append-c64-s1",
    "durable-append-c64-s1000",
)


def run(
    console: Console, commit: str | None, patterns: list[str], budget: Budget, rounds: int
) -> None:
    if commit is None:
        raise SystemExit("python -m bench against needs --commit, the commit to compare with")
    if build() != "compiled":
        raise SystemExit("the build is older than the sources: run make compiled")
    name = _git("rev-parse", "--short", f"{commit}^{{commit}}")
    facts = {
        "date": date.today().isoformat(),
        **machine.describe(["python -m bench", *sys.argv[1:]]),
        "against": name,
        "seconds": budget.seconds,
        "rounds": rounds,
    }
    compiled = _compile(console, name)
    found = []
    for row in _rows(patterns):
        console.print(row.name)
        found.append(_run_row(row, name, compiled, budget, rounds))
    _show(console, name, found)
    path = results.RESULTS / f"{facts['date']}-against-{name}.json"
    results.write(path, facts, found)
    console.print(f"samples: {path.relative_to(machine.REPOSITORY)}")


def _rows(patterns: list[str]) -> list[Row]:
    known = {**ROWS, **DURABLE}
    chosen = [known[n] for n in known if any(fnmatchcase(n, p) for p in patterns)]
    if patterns and not chosen:
        raise SystemExit(f"no row matches {' '.join(patterns)}; rows: {' '.join(known)}")
    return chosen or [known[name] for name in COMPARED_BY_DEFAULT]


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=machine.REPOSITORY, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    return done.stdout.strip()


def _compile(console: Console, name: str) -> Path:
    """The compiled build of a commit; kept for the next run."""
    place = BUILDS / name
    compiled = place / "compiled"
    if (compiled / "headrace").exists():
        return compiled
    console.print(f"compiling {name}: about a minute")
    with _sources(place / "source", name) as source:
        pip = [sys.executable, "-m", "pip"]
        quiet = ["--quiet", "--no-deps"]
        wheels = place / "wheel"
        subprocess.run(
            [*pip, "wheel", *quiet, "--no-build-isolation", "--wheel-dir", str(wheels), "."],
            cwd=source,
            env={**os.environ, "HATCH_BUILD_HOOK_ENABLE_MYPYC": "1"},
            check=True,
        )
        wheel = str(next(wheels.glob("*.whl")))
        subprocess.run([*pip, "install", *quiet, "--target", str(compiled), wheel], check=True)
    return compiled


@contextmanager
def _sources(place: Path, name: str) -> Iterator[Path]:
    """A checkout of the commit, without touching this working tree."""
    _git("worktree", "add", "--force", "--detach", str(place), name)
    try:
        yield place
    finally:
        _git("worktree", "remove", "--force", str(place))


def _run_row(row: Row, then: str, compiled: Path, budget: Budget, rounds: int) -> RowResult:
    """Rounds of A B, B A: neither always has the disk right after the other."""
    now = STORING["file-durable"] if row.name in DURABLE else KINDS["headrace"]
    # Away from config/: an earlier commit knows fewer settings.
    now = replace(now, directory=compiled)
    order = [(NOW, now), (then, _earlier(now, compiled))]
    result = RowResult(row, (NOW, then))
    for number_of_round in range(rounds):
        for name, kind in order if number_of_round % 2 == 0 else reversed(order):
            try:
                with running(kind) as target:
                    result.add(name, generate(row, target, budget))
            except ServerError as failure:
                result.add_failure(name, str(failure))
    return result


def _earlier(kind: ServerKind, compiled: Path) -> ServerKind:
    return replace(
        kind,
        command=lambda port: [sys.executable, "-m", "headrace.cli", "serve", "--port", str(port)],
        environment=kind.environment | {"PYTHONPATH": str(compiled)},
    )


def _show(console: Console, name: str, found: list[RowResult]) -> None:
    table = Table(title=f"This tree and {name} (ratio above 1: this tree is better)")
    for heading in ("row", "figure", NOW, name, "ratio", "range", "notes"):
        table.add_column(heading, justify="left" if heading in ("row", "notes") else "right")
    for result in found:
        for metric in result.metrics:
            first = metric is result.metrics[0]
            ratios = result.ratios(metric)
            table.add_row(
                result.row.name if first else "",
                metric.label,
                number(result.typical(NOW, metric.key)),
                number(result.typical(name, metric.key)),
                f"{median(ratios):.2f}" if ratios else "",
                f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "",
                ", ".join(notes(result)) if first else "",
                end_section=metric is result.metrics[-1],
            )
    console.print(table)
    for result in found:
        for failure in result.failures:
            console.print(f"[red]{result.row.name}: {failure}", highlight=False)
