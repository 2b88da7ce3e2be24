"""How long the command line takes: `python -m bench.cli_times [--report FILE]`.

Each figure is of a whole command, as a shell sees it, against one server in `file-durable` on this
machine: wall time as the median of several runs with their range, and the median of the command's
own CPU time, which other load on the machine changes less.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.machine import describe
from headrace.testing.server_process import ServerProcess

COMMAND = (sys.executable, "-m", "headrace.cli")
LINES = b"".join(b"%d\n" % number for number in range(100_000))
ROUNDS = 7
COMMANDS: dict[str, tuple[tuple[str, ...], bytes]] = {
    "--version": (("--version",), b""),
    "--help": (("--help",), b""),
    "head": (("head", "numbers"), b""),
    "append of 1 message": (("append", "one", "1"), b""),
    "append of 100,000 lines": (("append", "numbers"), LINES),
    "read of 100,000 messages": (("read", "whole"), b""),
    "tail -n 10 of a closed stream": (("tail", "whole", "-n", "10"), b""),
    "ls --long": (("ls", "--long"), b""),
}


def run(url: str, arguments: tuple[str, ...], stdin: bytes = b"") -> tuple[float, float]:
    """Wall and CPU seconds of one command."""
    began, cpu_before = time.monotonic(), children_cpu_secs()
    command = [*COMMAND, "--url", url, *arguments]
    subprocess.run(command, input=stdin, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began, children_cpu_secs() - cpu_before


def children_cpu_secs() -> float:
    """Of children that have ended: the server, which runs, is not one of them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(url: str) -> dict[str, dict[str, float]]:
    for name in ("numbers", "one", "whole"):
        run(url, ("create", name))
    run(url, ("append", "whole", "--close"), LINES)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):  # in turn, so that other load meets all of them
        for name, (arguments, stdin) in COMMANDS.items():
            taken[name].append(run(url, arguments, stdin))
    return {
        name: {
            "median_secs": round(median(secs for secs, _ in runs), 2),
            "min_secs": round(min(runs)[0], 2),
            "max_secs": round(max(runs)[0], 2),
            "cpu_secs": round(median(cpu for _, cpu in runs), 2),
        }
        for name, runs in taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--report", type=Path, help="write the figures here as JSON")
    given = parser.parse_args()
    machine = describe(["python -m bench.cli_times", *sys.argv[1:]])
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as home:
        env = {"DS_STORAGE__MODE": "file-durable", "DS_STORAGE__DATA_DIR": f"{home}/data"}
        with ServerProcess(env) as server:
            report = {"machine": machine, "rounds": ROUNDS, "commands": measure(server.url)}
    print(json.dumps(report, indent=2))
    if given.report is not None:
        given.report.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
