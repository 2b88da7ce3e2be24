"""How long the command line takes: `python -m bench.cli_times [--report FILE]`.

Each figure is the wall time of a whole command, from a shell's point of view, against one server in
`file-durable` on this machine: the median of several runs, with their range.
"""

from __future__ import annotations

import argparse
import json
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


def run(url: str, arguments: tuple[str, ...], stdin: bytes = b"") -> float:
    began = time.monotonic()
    command = [*COMMAND, "--url", url, *arguments]
    subprocess.run(command, input=stdin, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def measure(url: str) -> dict[str, dict[str, float]]:
    for name in ("numbers", "one", "whole"):
        run(url, ("create", name))
    run(url, ("append", "whole", "--close"), LINES)
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):  # in turn, so that other load meets all of them
        for name, (arguments, stdin) in COMMANDS.items():
            taken[name].append(run(url, arguments, stdin))
    return {
        name: {
            "median_secs": round(median(secs), 2),
            "min_secs": round(min(secs), 2),
            "max_secs": round(max(secs), 2),
        }
        for name, secs in taken.items()
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
