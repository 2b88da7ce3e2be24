"""`python -m bench durable`: servers that store, alternated; figures, samples and what is behind.

The reference refuses most appends over many streams: only answers that say "appended" count.
"""

from __future__ import annotations

import sys
from datetime import date
from fnmatch import fnmatchcase
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import machine, results
from bench.results import RowResult, figure
from bench.rows.base import Budget, Metric, Row
from bench.rows.durable import DURABLE
from bench.runner import generate
from bench.servers import STORING, ServerError, build, running
from bench.table import notes, number


def run(console: Console, patterns: list[str], budget: Budget, rounds: int, *, quick: bool) -> None:
    facts = {
        "date": date.today().isoformat(),
        **machine.describe(["python -m bench", *sys.argv[1:]]),
        "seconds": budget.seconds,
        "rounds": rounds,
        "build": build(),
    }
    for kind in STORING.values():
        kind.prepare()
    found = []
    for row in _rows(patterns):
        console.print(row.name)
        found.append(_run_row(row, budget, rounds))
    _show(console, facts, found)
    suffix = "-quick" if quick else "-partial" if patterns else ""
    path = results.RESULTS / f"{facts['date']}-durable{suffix}.json"
    results.write(path, facts, found)
    console.print(f"samples: {path.relative_to(machine.REPOSITORY)}")


def _rows(patterns: list[str]) -> list[Row]:
    rows = list(DURABLE.values())
    if not patterns:
        return rows
    chosen = [row for row in rows if any(fnmatchcase(row.name, p) for p in patterns)]
    if not chosen:
        raise SystemExit(f"no row matches {' '.join(patterns)}; rows: {' '.join(DURABLE)}")
    return chosen


def _run_row(row: Row, budget: Budget, rounds: int) -> RowResult:
    """Rounds of A B A B: what the machine does meanwhile happens to all of them."""
    result = RowResult(row)
    for _ in range(rounds):
        for name in row.servers:
            try:
                with running(STORING[name]) as target:
                    result.add(name, generate(row, target, budget))
            except ServerError as failure:
                result.add_failure(name, str(failure))
    return result


def _show(console: Console, facts: dict[str, Any], found: list[RowResult]) -> None:
    console.print(" · ".join(f"{name} {value}" for name, value in facts.items()))
    table = Table(title="Servers that store (× : file-durable to the reference, same round)")
    names = list(STORING)
    for heading in ("row", "figure", *names, "×", "notes"):
        table.add_column(heading, justify="left" if heading in ("row", "notes") else "right")
    for result in found:
        for metric in result.metrics:
            first = metric is result.metrics[0]
            table.add_row(
                result.row.name if first else "",
                metric.label,
                *(number(_typical(result, name, metric)) for name in names),
                _times(result, metric),
                ", ".join(notes(result)) if first else "",
                end_section=metric is result.metrics[-1],
            )
    console.print(table)
    for result in found:
        for failure in result.failures:
            console.print(f"[red]{result.row.name}: {failure}", highlight=False)


def _typical(result: RowResult, server: str, metric: Metric) -> float | None:
    return result.typical(server, metric.key) if server in result.samples else None


def _times(result: RowResult, metric: Metric) -> str:
    pairs = zip(
        result.samples.get("file-durable", []),
        result.samples.get("reference-file", []),
        strict=False,
    )
    ratios = [
        results.ratio(metric, ours, theirs)
        for ours, theirs in pairs
        if ours and theirs and figure(theirs, metric.key)
    ]
    return f"{median(ratios):.2f}" if ratios else ""
