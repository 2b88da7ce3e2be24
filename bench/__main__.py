"""The command: python -m bench [WHAT] [--quick] ... with WHAT one of those below."""

from __future__ import annotations

import argparse
import sys
from datetime import date

from rich.console import Console

from bench import against, durable, machine, plot, profile, reference_rows, results, table
from bench.rows import ROWS, select
from bench.rows.base import Budget
from bench.runner import run_rows
from bench.servers import KINDS, ServerError, build, run_from_sources

FULL = Budget(seconds=4.0, warmup_s=2.0, latency_samples=300)
QUICK = Budget(seconds=1.0, warmup_s=1.0, latency_samples=100)
STORAGE_MODE = "memory"
WIDTH_IN_A_FILE = 150
WHAT = ("compare", "durable", "against", "reference", "pipelines", "profile")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="?", choices=WHAT, default="compare")
    parser.add_argument(
        "--quick", "--small", action="store_true", help="one short round: a smoke test"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--servers", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--commit", help="against: the earlier commit to compare with")
    parser.add_argument("--pure", action="store_true", help="measure the Python sources")
    parser.add_argument("--seconds", type=float, help="measured time per row and server")
    parser.add_argument("--rounds", type=int, help="how often the servers alternate")
    parser.add_argument("--rows", type=int, help="pipelines: how many rows go through")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    options = parse(arguments)
    base = QUICK if options.quick else FULL
    budget = Budget(options.seconds or base.seconds, base.warmup_s, base.latency_samples)
    rounds = options.rounds or (1 if options.quick else 3)
    if options.pure:
        run_from_sources()
    console = Console(width=None if sys.stdout.isatty() else WIDTH_IN_A_FILE)
    try:
        if options.what == "profile":
            profile.run(console, options.only, budget)
        elif options.what == "durable":
            durable.run(console, options.only, budget, rounds, quick=options.quick)
        elif options.what == "against":
            against.run(console, options.commit, options.only, budget, rounds)
        elif options.what == "reference":
            reference_rows.run(console, rounds, quick=options.quick)
        elif options.what == "pipelines":
            # Imported here: the other rows need no Spark.
            from bench.pipelines import command

            command.run(
                console, options.only, options.rounds, rows=options.rows, small=options.quick
            )
        else:
            compare(console, options, budget, rounds)
    except ServerError as failure:
        raise SystemExit(str(failure)) from None


def compare(console: Console, options: argparse.Namespace, budget: Budget, rounds: int) -> None:
    facts = {
        "date": date.today().isoformat(),
        **machine.describe(["python -m bench", *sys.argv[1:]]),
        "seconds": budget.seconds,
        "rounds": rounds,
        "build": build(),
    }
    rows = [row for row in select(options.only) if set(row.servers) & set(options.servers)]
    found = run_rows(rows, options.servers, budget, rounds, lambda line: console.print(line))
    table.show(console, facts, found)
    partial = bool(options.only) or set(options.servers) != set(KINDS)
    suffix = "-pure" if options.pure else ""
    suffix += "-quick" if options.quick else "-partial" if partial else ""
    path = results.RESULTS / f"{facts['date']}-{STORAGE_MODE}{suffix}.json"
    results.write(path, facts, found)
    plot.draw(path.with_suffix(".png"), facts, found)
    console.print(f"samples and chart: {path.relative_to(machine.REPOSITORY)} (.png)")


if __name__ == "__main__":
    main(sys.argv[1:])
