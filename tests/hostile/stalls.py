"""What a server's watchdog has seen: its stalls, read from `/metrics`."""

from __future__ import annotations

import re
from dataclasses import dataclass

import httpx

_SAMPLE = re.compile(
    r"headrace_event_loop_stall(?P<of>_cpu|_held)?_seconds_(?P<part>bucket|count|sum)"
    r'\{(le="(?P<le>[^"]*)",)?operation="(?P<operation>[^"]*)"(,le="(?P<le2>[^"]*)")?\} '
    r"(?P<value>\S+)"
)


@dataclass(frozen=True)
class Stalls:
    """The stalls of one operation: how many, how long together, and how many were too long."""

    count: int
    secs: float
    cpu_secs: float
    held_secs: float
    above_250_ms: int
    """How many held the loop for longer than that: it computed, or was in a call that blocked."""

    def since(self, before: Stalls) -> Stalls:
        return Stalls(
            self.count - before.count,
            self.secs - before.secs,
            self.cpu_secs - before.cpu_secs,
            self.held_secs - before.held_secs,
            self.above_250_ms - before.above_250_ms,
        )


NONE = Stalls(0, 0.0, 0.0, 0.0, 0)


def stalls(client: httpx.Client) -> dict[str, Stalls]:
    """By operation."""
    found: dict[str, dict[str, float]] = {}
    for sample in _SAMPLE.finditer(client.get("/metrics").text):
        le = sample["le"] or sample["le2"] or ""
        key = f"{sample['of'] or ''}{sample['part']}{le}"
        found.setdefault(sample["operation"], {})[key] = float(sample["value"])
    return {
        operation: Stalls(
            int(values["count"]),
            values["sum"],
            values["_cpusum"],
            values["_heldsum"],
            int(values["_heldcount"] - values["_heldbucket0.25"]),
        )
        for operation, values in found.items()
    }


def stalls_since(client: httpx.Client, before: dict[str, Stalls]) -> dict[str, Stalls]:
    """Those that came after `before`, by operation."""
    now = {name: found.since(before.get(name, NONE)) for name, found in stalls(client).items()}
    return {name: found for name, found in now.items() if found.count}
