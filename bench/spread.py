"""What the number of streams costs: durable appends over 10, 1,000 and 100,000 streams, in turns.

    python -m bench.spread                       6 rounds of a fifth of a second each
    python -m bench.spread --rounds 4 --mode acid
    python -m bench.spread --sustained 30        each number by itself for half a minute instead

One server with 100,000 streams; 64 connections append to ten of them, 64 to a thousand and 64 to
all, in turns. The speed of a shared machine drifts by a third within minutes, so that rows that
are measured minutes apart say little about each other; neighbouring moments do. The ratio is of
one round, to the fastest of that round. Before the first of them the segment that the creations
are in is filled up and carried over, and all of them fit into the next: no checkpoint falls into
one. `--sustained` has them all: it says what is left beside them,
on the whole and in the slowest second.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from datetime import date
from pathlib import Path
from statistics import median

from bench.machine import describe
from bench.meter import Meter, Sample, pin_generator
from bench.rows.appends import ClosedLoop, plain
from bench.rows.base import Target
from bench.rows.durable import CONNECTIONS, create_all
from bench.servers import STORING, ServerKind, build, running
from bench.sockets import raise_descriptor_limit

STREAMS = (10, 1_000, 100_000)
WARM_UP_SECS = 0.3
FILL_APPENDS = 170_000  # with what was created, a little more than a segment of the journal
SETTLE_SECS = 20.0  # for the checkpoint behind that


class Contender:
    """The connections that append to the same streams, in turns."""

    def __init__(self, target: Target, names: list[str]) -> None:
        self._target = target
        self._loop = ClosedLoop(target.port, 204)
        for connection in range(CONNECTIONS):
            self._loop.add(plain(connection, names[connection::CONNECTIONS] or names))
        self._loop.begin()
        self.run(WARM_UP_SECS)

    def fill(self, appends: int) -> None:
        while self._loop.done < appends:
            self._loop.run_until(time.perf_counter() + 0.1)
        self._loop.close()

    def run(self, seconds: float) -> Sample:
        loop = self._loop
        done, failed = loop.done, loop.failed
        meter = Meter(self._target.pid)
        loop.run_until(meter.started + seconds)
        elapsed = time.perf_counter() - meter.started
        done, failed = loop.done - done, loop.failed - failed
        return meter.stop(done, failed, rate=done / elapsed)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spread")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--sustained", type=int, metavar="SECONDS")
    parser.add_argument("--mode", choices=("file-durable", "acid"), default="file-durable")
    parser.add_argument("--report", type=Path, help="write the samples there, as JSON")
    options = parser.parse_args(arguments)
    pin_generator()
    raise_descriptor_limit()
    kind = STORING[options.mode]
    machine = {
        "date": date.today().isoformat(),
        **describe(["python", "-m", "bench.spread", *arguments]),
        "build": build(),
    }
    print(" · ".join(f"{name} {value}" for name, value in machine.items()))
    if options.sustained is None:
        rounds = _in_turns(kind, options.rounds, options.seconds)
        samples = {n: [found[n] for found in rounds] for n in STREAMS}
        for streams in STREAMS:
            print(_line(streams, rounds))
    else:
        samples = {n: _sustained(kind, n, options.sustained) for n in STREAMS}
    if options.report is not None:
        found = {n: [sample.to_json() for sample in several] for n, several in samples.items()}
        report = {"machine": machine, "samples": found}
        options.report.write_text(json.dumps(report, indent=1) + "\n")


def _in_turns(kind: ServerKind, rounds: int, seconds: float) -> list[dict[int, Sample]]:
    names = _names(max(STREAMS))
    with running(kind) as target:
        create_all(target.port, names)
        Contender(target, names[:1000]).fill(FILL_APPENDS)
        time.sleep(SETTLE_SECS)
        contenders = {streams: Contender(target, names[:streams]) for streams in STREAMS}
        gc.collect()
        gc.disable()
        return [{n: one.run(seconds) for n, one in contenders.items()} for _ in range(rounds)]


def _sustained(kind: ServerKind, streams: int, seconds: int) -> list[Sample]:
    names = _names(streams)
    with running(kind) as target:
        create_all(target.port, names)
        contender = Contender(target, names)
        found = [contender.run(1.0) for _ in range(seconds)]
    rates = [sample.metrics["rate"] for sample in found]
    print(
        f"{streams:>7,} streams: {sum(rates) / seconds:>7,.0f} appends/s over {seconds} s, "
        f"half of the seconds {median(rates):,.0f} or more, the slowest {min(rates):,.0f}"
    )
    return found


def _names(count: int) -> list[str]:
    return [f"append-{number}" for number in range(count)]


def _line(streams: int, rounds: list[dict[int, Sample]]) -> str:
    mine = [found[streams] for found in rounds]
    share = median(
        found[streams].metrics["rate"] / max(sample.metrics["rate"] for sample in found.values())
        for found in rounds
    )
    return (
        f"{streams:>7,} streams: {median(s.metrics['rate'] for s in mine):>7,.0f} appends/s, "
        f"{share:.0%} of the fastest, {median(s.server_cpu_us for s in mine):.1f} µs of CPU each, "
        f"{sum(s.errors for s in mine)} errors"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
