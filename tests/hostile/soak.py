"""The long tier of the hostile tests: faults that no run has met, and tenants under attack.

    python -m tests.hostile.soak --minutes 10

A third of the time goes to servers in which calls fail after commits, each with a seed of its own
(`tests.hostile.answers`), the rest to honest tenants beside one or two attacks. Writes a report to
bench/results. Exits 1 where an answer was not its request's own, or somebody had to wait for it.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path

from tests.durability.modes import DURABLE_MODES
from tests.hostile import answers
from tests.hostile.hostile_tenant import ATTACKS
from tests.hostile.mixed import Arenas, violations

ROUNDS = 250  # about ten seconds
QUIET_ROUNDS = 250
ANSWERS_SHARE = 1 / 3  # of the time
RESULTS = Path(__file__).parents[2] / "bench" / "results"


@dataclass
class Found:
    """What was run, line by line, and what was wrong."""

    lines: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def say(self, what: str, report: object, wrong: list[str]) -> None:
        self.lines.append(f"| {what} | {report} | {len(wrong)} |")
        self.violations += [f"{what}: {sentence}" for sentence in wrong]
        print(f"{what}: {report}, {len(wrong)} violations", flush=True)


def answered(minutes: float, directory: Path, chance: random.Random, found: Found) -> None:
    """One server after another, in each mode, with seeds of chance until the time is up."""
    deadline = time.monotonic() + 60 * minutes
    for number, mode in enumerate(cycle(["memory", *DURABLE_MODES])):
        seed = chance.randrange(2**32)
        work = directory / f"answers-{number}"
        work.mkdir()
        met = answers.serve_and_run(mode, work, seed)
        found.say(f"faults after commits, {mode}, seed {seed}", met, met.violations())
        if time.monotonic() > deadline:
            return


def attacked(minutes: float, directory: Path, chance: random.Random, found: Found) -> None:
    """Attacks in an order of chance, each alone or with another, until the time is up."""
    deadline = time.monotonic() + 60 * minutes
    with Arenas(directory) as arenas:
        quiet = arenas.calm().quiet(QUIET_ROUNDS)
        found.say("tenants, nobody attacks", quiet, quiet.faults)
        is_first = True
        while is_first or time.monotonic() < deadline:
            is_first = False
            attacks = chance.sample(list(ATTACKS), k=chance.randint(1, 2))
            report = arenas.calm().under(attacks, ROUNDS)
            found.say(f"tenants, {' and '.join(attacks)}", report, violations(quiet, report))


def written(found: Found, began: datetime, minutes: float) -> str:
    took = (datetime.now(UTC) - began).total_seconds() / 60
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}"
    lines = [
        "# Hostile soak report",
        "",
        f"{began:%Y-%m-%d %H:%M} UTC, {took:.0f} minutes; {machine}, Python "
        f"{platform.python_version()}; load at the end {os.getloadavg()[0]:.1f}; "
        f"`python -m tests.hostile.soak --minutes {minutes:g}`",
        "",
        "| what | how much | violations |",
        "|---|---|---|",
        *found.lines,
        "",
        f"**{len(found.violations)} violations.**",
        *(f"- {sentence}" for sentence in found.violations[:100]),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--report", type=Path, help="where to write the report")
    chosen = parser.parse_args()
    began, found = datetime.now(UTC), Found()
    path: Path = chosen.report or RESULTS / f"hostile-soak-{began:%Y-%m-%d}.md"
    chance = random.Random(chosen.seed)
    answers_minutes = ANSWERS_SHARE * chosen.minutes
    with tempfile.TemporaryDirectory(prefix="headrace-hostile-") as name:
        try:
            answered(answers_minutes, Path(name), chance, found)
            attacked(chosen.minutes - answers_minutes, Path(name), chance, found)
        finally:
            with suppress(OSError):
                path.write_text(written(found, began, chosen.minutes))
    for sentence in found.violations:
        print(sentence, file=sys.stderr)
    print(f"report: {path}")
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
