"""Metrics of what the server runs as and on: its build, its process, the disk of its data.

All are read at a scrape. The process's own have the names that every Prometheus client uses.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from headrace import __version__
from headrace.build_info import is_compiled

HOST_METRICS: dict[str, str] = {
    "headrace_build_info": "Always 1; the labels say what was built.",
    "headrace_disk_size_bytes": "Size of the file system that holds the data directory.",
    "headrace_disk_free_bytes": "What of it the server may still use.",
    "headrace_disk_used_bytes": "What of it is in use, by anyone.",
    "process_cpu_seconds_total": "CPU time of the process.",
    "process_max_fds": "File descriptors that it may open.",
    "process_open_fds": "File descriptors that it has open.",
    "process_resident_memory_bytes": "Its resident memory.",
    "process_start_time_seconds": "When it started, in seconds since 1970.",
    "process_virtual_memory_bytes": "Its virtual memory.",
}


class HostMetrics:
    """`data_dir` is None in memory mode, which uses no disk."""

    def __init__(self, data_dir: Path | None) -> None:
        self._data_dir = data_dir
        self._process = ProcessCollector(registry=None)
        labels = {
            "version": __version__,
            "python": platform.python_version(),
            "compiled": str(is_compiled()).lower(),
        }
        name = "headrace_build_info"
        self._build = InfoMetricFamily(name.removesuffix("_info"), HOST_METRICS[name], labels)

    def collect(self) -> Iterator[Metric]:
        yield self._build
        process: Iterable[Metric] = self._process.collect()
        yield from process
        if self._data_dir is not None:
            yield from self._disk(self._data_dir)

    def _disk(self, data_dir: Path) -> Iterator[Metric]:
        try:
            found = os.statvfs(data_dir)
        except OSError:
            return  # no descriptor or no directory: everything else is still worth a scrape
        sizes = {
            "size": found.f_blocks,
            "free": found.f_bavail,
            "used": found.f_blocks - found.f_bfree,
        }
        for what, blocks in sizes.items():
            name = f"headrace_disk_{what}_bytes"
            yield GaugeMetricFamily(name, HOST_METRICS[name], value=blocks * found.f_frsize)
