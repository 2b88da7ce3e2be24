"""The long tier of the kill tests: 20 kills of each part, and a report of what arrived.

Then the same with producers and ledger switched off, which must show doubled records: else the
run could not have found any. Then a mirrored database (`tests.spark.mirror`). Exits 1 if one of
them is not as it should be.

    python -m tests.spark.soak [--each 20] [--minutes M] [--mirror-minutes 10]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.spark import mirror
from tests.spark.cluster import Cluster
from tests.spark.kills import KINDS, Campaign, Outcome

RESULTS = Path(__file__).parents[2] / "bench" / "results"
_DRIVER_KILLS_WITHOUT = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=20, help="kills of each part")
    parser.add_argument("--minutes", type=float, default=math.inf, help="then kill no more")
    parser.add_argument("--without", type=int, default=_DRIVER_KILLS_WITHOUT)
    parser.add_argument("--mirror-minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--report", type=Path, help="instead of one under bench/results")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(2))  # and leave nothing running
    date = time.strftime("%Y-%m-%d", time.gmtime())
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as home, Cluster(Path(home)) as cluster:
        with Campaign(cluster, given.seed) as campaign:
            exact = campaign.fight(given.each * KINDS, 60 * given.minutes)
            killed, restarts = campaign.killed, campaign.restarts
        with Campaign(cluster, given.seed, exactly_once=False) as campaign:
            without = campaign.fight(given.without * ["driver"])
        mirrored = mirror.campaign(cluster, given.seed, given.mirror_minutes)
    report: dict[str, Any] = {
        "date": date,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "command": " ".join(["python -m tests.spark.soak", *sys.argv[1:]]),
        "seed": given.seed,
        "minutes": round((time.monotonic() - started) / 60, 1),
        "kills": {kind: killed[kind] for kind in KINDS},
        "driver ended by itself and was started again": restarts,
        "exactly once": _told(exact),
        f"switched off, {given.without} kills of the driver": _told(without),
        "a database mirrored": mirrored,
    }
    text = json.dumps(report, indent=2)
    print(text)
    path = given.report or RESULTS / f"{date}-spark-kills.json"
    path.write_text(text + "\n", "utf-8")
    is_exact = all(outcome.is_exact for outcome in exact.values()) and not mirrored["differences"]
    can_fail = any(outcome.duplicated for outcome in without.values())
    sys.exit(0 if is_exact and can_fail else 1)


def _told(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    return {name: asdict(outcome) for name, outcome in outcomes.items()}


if __name__ == "__main__":
    main()
