"""`python -m bench pipelines`: runs the rows, prints the table, writes the samples."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import machine
from bench.pipelines import folding, idle, latency, postgres, streams
from bench.pipelines.measuring import OURS, BoundedResult, BoundedRow, measure
from bench.pipelines.place import FULL, SMALL, Place, running
from bench.results import RESULTS
from bench.rows.base import Metric
from bench.table import number, weather


def run(
    console: Console, patterns: list[str], rounds: int | None, *, rows: int | None, small: bool
) -> None:
    sizes = SMALL if small else FULL
    sizes = replace(sizes, rows=rows or sizes.rows)
    facts = {
        "date": date.today().isoformat(),
        **machine.describe(["python -m bench", *sys.argv[1:]]),
        "spark": version("pyspark"),
        "rows": sizes.rows,
        "rounds": rounds or sizes.rounds,
    }
    found: list[BoundedResult] = []
    is_whole = False
    try:
        with running(sizes) as place:
            for row in _rows(place, patterns):
                console.print(row.name)
                found.append(measure(row, rounds or sizes.rounds, place.server.pid))
        if not found:
            raise SystemExit(f"no row matches {' '.join(patterns)}")
        is_whole = not patterns
    finally:
        # Whatever a row fails of, those before it were measured.
        if found:
            _keep(console, facts, found, "-quick" if small else "" if is_whole else "-partial")


def _keep(console: Console, facts: dict[str, Any], found: list[BoundedResult], suffix: str) -> None:
    _show(console, facts, found)
    path = RESULTS / f"{facts['date']}-pipelines{suffix}.json"
    path.parent.mkdir(exist_ok=True)
    document = {"machine": facts, "rows": [result.to_json() for result in found]}
    path.write_text(json.dumps(document, indent=1) + "\n")
    console.print(f"samples: {path.relative_to(machine.REPOSITORY)}")


def _rows(place: Place, patterns: list[str]) -> Iterator[BoundedRow]:
    for module in (streams, postgres, latency, folding, idle):
        for row in module.rows(place):
            if not patterns or any(fnmatchcase(row.name, pattern) for pattern in patterns):
                yield row


def _show(console: Console, facts: dict[str, Any], found: list[BoundedResult]) -> None:
    console.print(" · ".join(f"{name} {value}" for name, value in facts.items()))
    table = Table(title="Pipelines (ratio: to the bound that binds; 1 is as good as the limit)")
    for heading in ("row", "figure", OURS, "bounds", "ratio", "notes"):
        table.add_column(heading, justify="left" if heading in ("row", "notes") else "right")
    for result in found:
        metrics = result.row.metrics
        for metric in metrics:
            first = metric is metrics[0]
            table.add_row(*_line(result, metric, first), end_section=metric is metrics[-1])
    console.print(table)


def _line(result: BoundedResult, metric: Metric, first: bool) -> list[str]:
    bounds = (f"{name} {number(result.typical(name, metric))}" for name in result.row.bounds)
    ratio = result.ratio(metric)
    samples = [sample for each in result.samples.values() for sample in each]
    return [
        result.row.name if first else "",
        metric.label,
        number(result.typical(OURS, metric)),
        "\n".join(bounds),
        "-" if ratio is None else f"{ratio:.2f}",
        ", ".join(weather(samples)) if first else "",
    ]
