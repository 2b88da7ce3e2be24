"""The `headrace` command with a sampling profiler inside it, for `python -m bench profile`.

Usage: python -m bench.profiled_server SAMPLES_FILE serve --port N
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path

from bench.sampler import Sampler


def main() -> None:
    (command,) = entry_points(group="console_scripts", name="headrace")
    entry = command.load()
    samples = Path(sys.argv[1])
    sys.argv = ["headrace", *sys.argv[2:]]
    sampler = Sampler()
    sampler.start_on_signal()
    try:
        entry()
    finally:
        sampler.save(samples)


if __name__ == "__main__":
    main()
