"""The tables a person reads at the end of a run."""

from __future__ import annotations

from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.meter import Sample
from bench.results import OURS, THEIRS, RowResult
from bench.rows.base import Metric

STEAL_SHARE_MAX = 0.03
OTHER_SHARE_MAX = 0.10


def show(console: Console, machine: dict[str, Any], results: list[RowResult]) -> None:
    console.print(" · ".join(f"{name} {value}" for name, value in machine.items()))
    limits = [result for result in results if OURS not in result.row.servers]
    compared = [result for result in results if OURS in result.row.servers]
    if limits:
        console.print(_limit_table(limits))
    if compared:
        console.print(_ratio_table(compared))
    for result in results:
        for failure in result.failures:
            console.print(f"[red]{result.row.name}: {failure}", highlight=False)


def _limit_table(results: list[RowResult]) -> Table:
    table = _table("The machine's limit: uvloop + httptools answering 204, and this generator")
    for heading in ("appends/s", "server µs", "generator µs", "bound by"):
        table.add_column(heading, justify="right")
    for result in results:
        for sample in result.good("bare")[-1:]:
            table.add_row(
                result.row.name,
                number(result.typical("bare", "rate")),
                number(result.typical("bare", "server_cpu_us")),
                number(median(s.generator_cpu_us for s in result.good("bare"))),
                sample.bound_by,
            )
    return table


def _ratio_table(results: list[RowResult]) -> Table:
    table = _table("Headrace and the reference (ratio above 1: Headrace is better)")
    for heading in ("figure", OURS, THEIRS, "ratio", "range", "generator µs", "notes"):
        justify = "left" if heading in ("figure", "notes") else "right"
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for result in results:
        for metric in result.metrics:
            first = metric is result.metrics[0]
            table.add_row(*_line(result, metric, first), end_section=metric is result.metrics[-1])
    return table


def _line(result: RowResult, metric: Metric, first: bool) -> list[str]:
    ratios = result.ratios(metric)
    generator = [number(_generator_us(result, server)) for server in (OURS, THEIRS)]
    return [
        result.row.name if first else "",
        metric.label,
        number(result.typical(OURS, metric.key)),
        number(result.typical(THEIRS, metric.key)),
        f"{median(ratios):.2f}" if ratios else "-",
        f"{min(ratios):.2f} to {max(ratios):.2f}" if len(ratios) > 1 else "",
        " / ".join(generator) if first else "",
        ", ".join(notes(result)) if first else "",
    ]


def _generator_us(result: RowResult, server: str) -> float | None:
    samples = result.good(server)
    return median(sample.generator_cpu_us for sample in samples) if samples else None


def notes(result: RowResult) -> list[str]:
    """What a reader must know before trusting a line."""
    found = []
    for server in result.samples:
        samples = result.good(server)
        errors = sum(sample.errors for sample in samples)
        if errors:
            found.append(f"{server}: {errors} errors")
        if any(sample.bound_by != "server" for sample in samples):
            found.append(f"{server} at {_utilisation(samples):.0%}")
        if any(sample.bound_by == "generator" for sample in samples):
            found.append("generator-bound")
    everything = [sample for server in result.samples for sample in result.good(server)]
    return found + weather(everything)


def _utilisation(samples: list[Sample]) -> float:
    """Of one core; a server that is not near 100 % was waiting for somebody."""
    return median(sample.server_cpu_seconds / sample.seconds for sample in samples)


def weather(samples: list[Sample]) -> list[str]:
    steal = max((sample.steal_share for sample in samples), default=0.0)
    other = max((sample.other_share for sample in samples), default=0.0)
    found = [f"steal {steal:.0%}"] if steal > STEAL_SHARE_MAX else []
    return found + ([f"other load {other:.0%}"] if other > OTHER_SHARE_MAX else [])


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("row", no_wrap=True)
    return table


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
