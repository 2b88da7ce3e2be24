"""The chart of ratios, one bar per row and figure."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from bench.results import RowResult

BETTER, WORSE = "#2a7f8e", "#c0653a"


def _times(value: float, _position: object) -> str:
    return f"{value:g}×"


def draw(path: Path, machine: dict[str, Any], results: list[RowResult]) -> None:
    bars = [
        (f"{result.row.name}  {metric.label}", ratios)
        for result in results
        for metric in result.metrics
        if (ratios := result.ratios(metric))
    ]
    if not bars:
        return
    bars.reverse()  # barh draws from the bottom
    middles = [median(ratios) for _, ratios in bars]
    below = [middle - min(ratios) for middle, (_, ratios) in zip(middles, bars, strict=True)]
    above = [max(ratios) - middle for middle, (_, ratios) in zip(middles, bars, strict=True)]
    # A Figure of its own draws PNGs with Agg; pyplot would look for a display.
    plot = Figure(figsize=(10, 1.5 + 0.28 * len(bars)))
    axes = plot.subplots()
    axes.barh(
        [label for label, _ in bars],
        [middle - 1 for middle in middles],
        left=1.0,
        xerr=[below, above],
        color=[BETTER if middle >= 1 else WORSE for middle in middles],
        ecolor="#444444",
        capsize=2,
    )
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(_times)
    axes.xaxis.set_minor_formatter(_times)
    axes.tick_params(axis="x", which="both", labelsize=7)
    for place, middle in enumerate(middles):
        axes.annotate(
            f" {middle:.2f}", (middle, place), xytext=(4, 5), textcoords="offset points", fontsize=7
        )
    axes.set_xlabel("times better than the Node reference server (median of rounds, range)")
    axes.set_title(
        f"{machine['date']} · {machine['cpu']}, {machine['cores']} cores · {machine['commit']}",
        fontsize=9,
    )
    axes.tick_params(axis="y", labelsize=8)
    plot.tight_layout()
    plot.savefig(path, dpi=120)
