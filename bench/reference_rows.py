"""`python -m bench reference`: the three figures of the reference's own benchmark.

Round trip of an append, throughput of small and of large messages, measured with the reference's
client against our four modes and the reference in memory and in files; the mean of the rounds.
The results go into docs/benchmark-report.md between its two marks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date
from statistics import mean

from rich.console import Console

from bench import machine
from bench.machine import HostTimes
from bench.servers import KINDS, REFERENCE, STORING, ServerError, ServerKind, running
from bench.table import number

VARIANTS: dict[str, ServerKind] = {
    "Headrace memory": KINDS["headrace"],
    "Headrace file-fast": STORING["file-fast"],
    "Headrace file-durable": STORING["file-durable"],
    "Headrace acid": STORING["acid"],
    "Node memory": KINDS["reference"],
    "Node file": STORING["reference-file"],
}
FIGURES = {
    "rtt_ms": "RTT (ms)",
    "small_per_s": "100-byte messages/s",
    "large_per_s": "1 MiB messages/s",
}
COUNTS = (50, 10, 3)
QUICK_COUNTS = (5, 1, 1)
TIMEOUT_S = 300.0
REPORT = machine.REPOSITORY / "docs" / "benchmark-report.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def run(console: Console, rounds: int, *, quick: bool) -> None:
    counts = QUICK_COUNTS if quick else COUNTS
    for kind in VARIANTS.values():
        kind.prepare()
    before = HostTimes.now()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for number_of_round in range(rounds):
        for name, kind in VARIANTS.items():
            console.print(f"round {number_of_round + 1}/{rounds} {name}")
            found[name].append(measure(kind, counts))
    after = HostTimes.now()
    steal = (after.steal - before.steal) / max(after.total - before.total, 1e-9)
    text = "\n".join([*_table(found), "", _facts(rounds, steal)])
    console.print(text, markup=False, highlight=False)
    if not quick:
        write(text)
        console.print(f"written to {REPORT.relative_to(machine.REPOSITORY)}")


def measure(kind: ServerKind, counts: tuple[int, int, int]) -> dict[str, float]:
    with running(kind) as target:
        command = ["node", "rows.mjs", f"http://127.0.0.1:{target.port}", *map(str, counts)]
        done = subprocess.run(
            command, cwd=REFERENCE, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        if done.returncode:
            raise ServerError(done.stderr[-1000:])
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _table(found: dict[str, list[dict[str, float]]]) -> list[str]:
    lines = [f"| server | {' | '.join(FIGURES.values())} |", "|---|---:|---:|---:|"]
    for name, runs in found.items():
        means = [number(mean(one[key] for one in runs)) for key in FIGURES]
        lines.append(f"| {name} | {' | '.join(means)} |")
    return lines


def _facts(rounds: int, steal: float) -> str:
    facts = machine.describe(["python -m bench", *sys.argv[1:]])
    return (
        f"{date.today().isoformat()}, {facts['cores']} cores ({facts['cpu']}), Linux "
        f"{facts['kernel']}, Python {facts['python']}, Node {facts['node']}, commit "
        f"{facts['commit']}; mean of {rounds} runs; steal {steal:.0%}, load at the start "
        f"{facts['load_average']}; `{facts['command']}`"
    )


def write(text: str) -> None:
    """Replace what stands between the marks of the report."""
    page = REPORT.read_text()
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    REPORT.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")
