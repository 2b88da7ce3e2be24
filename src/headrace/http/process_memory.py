"""How the process uses memory: what the collector looks at, what the allocator gives back."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Final

from headrace.clock import thread_cpu

# A request leaves next to nothing behind for the collector, so it need not look often: the young
# once there are this many more of them, the middle-aged and the old at every so-manieth time. A
# collection stops everything, and takes 0.2 microseconds for each object that it looks at: this is
# 10 ms for the middle-aged, and 60 for the old that have come since they were looked at last.
_GC_THRESHOLDS: Final = (10_000, 2, 2)
_FULL_COLLECTION: Final = 2  # the oldest generation: everything that the collector keeps track of
_LONG_COLLECTION_SECS: Final = 0.02
# Answers of a megabyte come and go, and bodies of up to 16. Memory that goes back to the kernel
# after each of them costs a page fault for every 4 KiB of the next: catch-up reads take half as
# long without.
_KEPT_FREE_BYTES: Final = 32 * 1024 * 1024
_MAPPED_BYTES_MIN: Final = 32 * 1024 * 1024
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def tune_gc() -> None:
    """Call once the server is up: everything made so far lives as long as the process."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.callbacks.append(_FullCollections())
    with suppress(AttributeError, OSError):  # a C library other than glibc
        library = ctypes.CDLL(None)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)
        library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)


class _FullCollections:
    """What took long to look through is not looked at again.

    So a full collection costs what has come since, and not what is there: without, each stream in
    memory costs every one of them 2 microseconds. What is frozen is freed when nothing refers to
    it, as ever. A cycle would stay, if it is frozen before it is garbage: what clients make and
    end is none, as `tests/hostile/test_cycles.py` sees to.
    """

    def __init__(self) -> None:
        self._begun = 0.0

    def __call__(self, phase: str, facts: dict[str, int]) -> None:
        if facts["generation"] < _FULL_COLLECTION:
            return
        if phase == "start":
            self._begun = thread_cpu()
        elif thread_cpu() - self._begun > _LONG_COLLECTION_SECS:
            gc.freeze()
