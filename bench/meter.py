"""One measured window: what was done in it, and what it cost the server, the generator, the host.

The generator process reads all clocks itself, at the edges of its own window, so start-up,
set-up and warm-up are outside every figure.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.machine import HostTimes, cpu_seconds

SATURATED = 0.85  # of one core


@dataclass(frozen=True, slots=True)
class Sample:
    """One row on one server in one round."""

    seconds: float
    units: int
    errors: int
    server_cpu_seconds: float
    generator_cpu_seconds: float
    steal_share: float
    other_share: float
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def server_cpu_us(self) -> float:
        return self.server_cpu_seconds / max(self.units, 1) * 1e6

    @property
    def generator_cpu_us(self) -> float:
        return self.generator_cpu_seconds / max(self.units, 1) * 1e6

    @property
    def bound_by(self) -> str:
        """Who had no time left. `neither`: round trips, pauses, or other load on the machine."""
        if self.server_cpu_seconds >= SATURATED * self.seconds:
            return "server"
        if self.generator_cpu_seconds >= SATURATED * self.seconds:
            return "generator"
        return "neither"

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "server_cpu_us": self.server_cpu_us,
            "generator_cpu_us": self.generator_cpu_us,
            "bound_by": self.bound_by,
        }


class Meter:
    """Started at the beginning of the window; `stop` gives the sample."""

    def __init__(self, server_pid: int) -> None:
        self._server_pid = server_pid
        self._host = HostTimes.now()
        self._server = cpu_seconds(server_pid)
        self._generator = time.process_time()
        self.started = time.perf_counter()

    def stop(self, units: int, errors: int, **metrics: float) -> Sample:
        seconds = time.perf_counter() - self.started
        generator = time.process_time() - self._generator
        server = cpu_seconds(self._server_pid) - self._server
        host = HostTimes.now()
        total = max(host.total - self._host.total, 1e-9)
        other = host.busy - self._host.busy - server - generator
        return Sample(
            seconds=seconds,
            units=units,
            errors=errors,
            server_cpu_seconds=server,
            generator_cpu_seconds=generator,
            steal_share=(host.steal - self._host.steal) / total,
            other_share=max(other, 0.0) / total,
            metrics=metrics,
        )


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]


def pin_generator() -> None:
    """The generator stays on the last core it may use; no server is pinned.

    A server pinned to the other core would be right for one thread and wrong for Node, whose
    garbage collector and compiler threads may use a second core. Unpinned, both decide alike.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
