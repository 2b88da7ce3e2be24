"""Runs the rows: servers alternate, every measurement gets a fresh server and a fresh generator."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from bench.machine import REPOSITORY
from bench.meter import Sample
from bench.results import RowResult
from bench.rows.base import Budget, Row, Target
from bench.servers import KINDS, ServerError, running

WORKER_TIMEOUT_S = 300.0


def run_row(row: Row, servers: list[str], budget: Budget, rounds: int) -> RowResult:
    """Rounds of A B A B: what the machine does meanwhile happens to both."""
    result = RowResult(row)
    for _ in range(rounds):
        for name in servers:
            try:
                with running(KINDS[name]) as target:
                    result.add(name, generate(row, target, budget))
            except ServerError as failure:
                result.add_failure(name, str(failure))
    return result


def run_rows(
    rows: list[Row],
    servers: list[str],
    budget: Budget,
    rounds: int,
    announce: Callable[[str], None],
) -> list[RowResult]:
    for name in servers:
        KINDS[name].prepare()
    results = []
    for number, row in enumerate(rows, 1):
        announce(f"{number}/{len(rows)} {row.name}")
        results.append(run_row(row, [n for n in servers if n in row.servers], budget, rounds))
    return results


def generate(row: Row, target: Target, budget: Budget) -> Sample:
    """One row in a generator process of its own."""
    arguments = [row.name, target.port, target.pid]
    arguments += [budget.seconds, budget.warmup_s, budget.latency_samples]
    command = [sys.executable, "-m", "bench.worker", *map(str, arguments)]
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, timeout=WORKER_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise ServerError(f"{row.name} was not over after {WORKER_TIMEOUT_S} s") from None
    if done.returncode:
        raise ServerError(done.stderr.strip().rpartition("\n")[2])
    return Sample(**json.loads(done.stdout))
