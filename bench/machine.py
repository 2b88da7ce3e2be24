"""What the machine is and what it has spent: CPU of a process, memory, host load, versions."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, all its threads, including ended ones.

    The process's CPU clock is the sum that /proc/PID/stat shows as utime+stime, in nanoseconds
    instead of 10 ms ticks: a row of 300 samples would otherwise be off by 30 µs a request.
    """
    process_cpu_clock = (~pid << 3) | 2  # clock_getcpuclockid(3), which Python does not export
    return time.clock_gettime_ns(process_cpu_clock) / 1e9


def user_and_system_seconds(pid: int) -> tuple[float, float]:
    """How the same time divides between the process's own code and the kernel."""
    # The second field is the command in brackets and may hold spaces: count from the last one.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / TICKS_PER_SECOND, int(fields[12]) / TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class HostTimes:
    """CPU seconds of the whole machine since boot."""

    busy: float
    steal: float
    total: float

    @classmethod
    def now(cls) -> HostTimes:
        first_line = Path("/proc/stat").read_text().split("\n", 1)[0]
        user, nice, system, idle, iowait, irq, softirq, steal = (
            int(field) / TICKS_PER_SECOND for field in first_line.split()[1:9]
        )
        busy = user + nice + system + irq + softirq
        return cls(busy, steal, busy + steal + idle + iowait)


def describe(command: list[str]) -> dict[str, str | int | float]:
    """The facts a figure is worthless without."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "node": _first_line(["node", "--version"]),
        "commit": _first_line(["git", "describe", "--always", "--dirty"]),
        "load_average": round(os.getloadavg()[0], 2),
        "command": " ".join(command),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=10)
    except OSError:
        return "none"
    return done.stdout.strip().split("\n", 1)[0] or "none"
