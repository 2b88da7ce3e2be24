"""The generator process: runs one row against one server and prints the sample as JSON.

Usage: python -m bench.worker ROW PORT PID SECONDS WARMUP_S LATENCY_SAMPLES
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict

from bench.meter import pin_generator
from bench.rows import ROWS
from bench.rows.base import Budget, Target
from bench.rows.durable import DURABLE
from bench.sockets import raise_descriptor_limit


def main(arguments: list[str]) -> None:
    name, port, pid, seconds, warmup_s, latency_samples = arguments
    pin_generator()
    raise_descriptor_limit()
    gc.disable()  # a collection in the middle of a round trip would be measured as the server's
    sample = (ROWS | DURABLE)[name].run(
        Target(int(port), int(pid)), Budget(float(seconds), float(warmup_s), int(latency_samples))
    )
    json.dump(asdict(sample), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
