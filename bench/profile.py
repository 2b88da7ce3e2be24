"""Where the CPU microseconds of a request go, by module, function and line."""

from __future__ import annotations

import json
import linecache
import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.machine import REPOSITORY, user_and_system_seconds
from bench.meter import Sample
from bench.rows import ROWS, select
from bench.rows.base import Budget, Row
from bench.runner import generate
from bench.sampler import START_SIGNAL
from bench.servers import HEADRACE_ENVIRONMENT, KINDS, PYTHON, ServerKind, running

DEFAULT_ROWS = ["append-c64-s1", "producer-c64-s1"]
LINES_SHOWN = 20
SOURCES = REPOSITORY / "src"


def run(console: Console, patterns: list[str], budget: Budget) -> None:
    KINDS["headrace"].prepare()
    rows = select(patterns) if patterns else [ROWS[name] for name in DEFAULT_ROWS]
    for row in rows:
        _profile_row(console, row, budget)


def _profile_row(console: Console, row: Row, budget: Budget) -> None:
    with tempfile.TemporaryDirectory() as directory:
        samples = Path(directory) / "samples.json"
        with running(_profiled(samples)) as target:
            os.kill(target.pid, START_SIGNAL)
            sample = generate(row, target, budget)
            user, system = user_and_system_seconds(target.pid)
        document = json.loads(samples.read_text())
    _print(console, row, sample, system / (user + system), document)


def _profiled(samples: Path) -> ServerKind:
    python = str(PYTHON)
    command = [python, "-m", "bench.profiled_server", str(samples), "serve", "--port"]
    return ServerKind("profiled", lambda port: [*command, str(port)], HEADRACE_ENVIRONMENT)


def _print(
    console: Console, row: Row, sample: Sample, system_share: float, document: dict[str, Any]
) -> None:
    lines: list[tuple[str, str, int, int]] = document["lines"]
    inclusive = {(file, name): count for file, name, count in document["inclusive"]}
    total = sum(count for *_, count in lines)
    us_per_sample = sample.server_cpu_us / max(total, 1)
    console.print(
        f"[bold]{row.name}[/]: {sample.server_cpu_us:.1f} CPU µs per {row.unit} "
        f"({system_share:.0%} of the process's time in the kernel), "
        f"{sample.units:,} {row.unit}s in {sample.seconds:.1f} s, {total} samples",
        highlight=False,
    )
    modules: Counter[str] = Counter()
    functions: Counter[tuple[str, str]] = Counter()
    for file, name, _, count in lines:
        modules[module_of(file)] += count
        functions[file, name] += count
    console.print(_table("By module", us_per_sample, modules.most_common()))
    console.print(
        _table(
            "By function (own time, C calls included; then with all it calls)",
            us_per_sample,
            (
                (f"{module_of(file)}:{name} ({us_per_sample * inclusive[file, name]:.2f})", count)
                for (file, name), count in functions.most_common(LINES_SHOWN)
            ),
        )
    )
    hottest = sorted(lines, key=lambda line: -line[3])[:LINES_SHOWN]
    console.print(
        _table(
            "By line",
            us_per_sample,
            (
                (f"{module_of(file)}:{line} {linecache.getline(file, line).strip()}", count)
                for file, _, line, count in hottest
            ),
        )
    )


def module_of(file: str) -> str:
    """`headrace/http/connections/connection.py` for our code, the library's name for all other."""
    path = Path(file)
    if path.is_relative_to(SOURCES):
        return str(path.relative_to(SOURCES))
    if path.parts[-2:-1] in (("asyncio",), ("uvloop",)):
        return "event loop (epoll, recv, dispatch)"
    return "/".join(path.parts[-2:])


def _table(title: str, us_per_sample: float, counts: Iterable[tuple[str, int]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None)
    table.add_column(justify="right")
    table.add_column(no_wrap=True, overflow="ellipsis")
    for label, count in counts:
        table.add_row(f"{us_per_sample * count:.2f} µs", escape(label))
    return table
