"""The long tier of the mixed tenants: one attack or two at a time, for as long as there is time.

    python -m tests.hostile.soak --minutes 10

Exits 1 where an honest tenant met anything but its own answers, or had to wait for them.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.hostile.hostile_tenant import ATTACKS
from tests.hostile.mixed import Arenas, violations

ROUNDS = 250  # about ten seconds
QUIET_ROUNDS = 100


class Found(NamedTuple):
    """What was run, line by line, and what was wrong."""

    lines: list[str]
    violations: list[str]


def campaign(minutes: float, directory: Path, seed: int | None = None) -> Found:
    """Attacks in an order of chance, each alone or beside another, until the time is up."""
    chance = random.Random(seed)
    deadline = time.monotonic() + 60 * minutes
    found = Found([], [])
    with Arenas(directory) as arenas:
        quiet = arenas.calm().quiet(QUIET_ROUNDS)
        found.violations.extend(f"quiet: {fault}" for fault in quiet.faults)
        while not found.lines or time.monotonic() < deadline:
            attacks = chance.sample(list(ATTACKS), k=chance.randint(1, 2))
            report = arenas.calm().under(attacks, ROUNDS)
            what = " and ".join(attacks)
            found.lines.append(f"{what}: {report}")
            found.violations.extend(f"{what}: {wrong}" for wrong in violations(quiet, report))
            print(found.lines[-1], flush=True)
    return found


def main() -> int:
    arguments = argparse.ArgumentParser(description="Honest tenants beside a hostile one.")
    arguments.add_argument("--minutes", type=float, default=10)
    arguments.add_argument("--seed", type=int, default=None)
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = campaign(chosen.minutes, Path(directory), chosen.seed)
    print(f"{len(found.lines)} runs, {len(found.violations)} violations")
    for sentence in found.violations:
        print(sentence, file=sys.stderr)
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
