"""CPU that the parts of a running stack have spent, by part and by kind of process."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from bench.machine import TICKS_PER_SECOND, cpu_seconds
from headrace.stack.processes import in_session
from headrace.testing.stack_process import StackProcess

THIS = "this script"


def spent_seconds(stack: StackProcess) -> dict[str, float]:
    """So far. What a part starts is named after it: `sync python` are Spark's workers."""
    found: defaultdict[str, float] = defaultdict(float, {THIS: time.process_time()})
    for part in stack.record.services:
        if part.pid is None:
            continue
        for process in in_session(part.pid):
            try:
                found[_name(part.name, part.pid, process.pid)] += _seconds(process.pid)
            except OSError:
                continue  # it has ended; if it was waited for, its parent has its time
    return dict(found)


def each_ms(
    before: Mapping[str, float], after: Mapping[str, float], triggers: int
) -> dict[str, float]:
    """What was spent in between, in milliseconds for each trigger, most first."""
    spent = {name: (after[name] - before.get(name, 0.0)) * 1000 / triggers for name in after}
    return {f"{name} ms": round(spent[name], 1) for name in sorted(spent, key=lambda n: -spent[n])}


def _name(part: str, leader: int, pid: int) -> str:
    kind = os.path.basename(os.readlink(f"/proc/{pid}/exe")).rstrip("0123456789.")
    return part if pid == leader or kind == part else f"{part} {kind}"


def _seconds(pid: int) -> float:
    """Its own time, and that of children it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text("latin-1").rpartition(")")[2].split()
    return cpu_seconds(pid) + (int(fields[13]) + int(fields[14])) / TICKS_PER_SECOND
