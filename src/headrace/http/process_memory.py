"""Tunes memory: when the garbage collector runs, and what malloc returns to the kernel."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Final

from headrace.clock import thread_cpu

# A request leaves next to nothing behind for the collector, so collections can be rare: thresholds
# for the young, middle and old generation. A collection stops everything, and takes 0.2
# microseconds for each object that it traverses: this is
# 10 ms for the middle generation, and 60 for the objects that joined the oldest since its last run.
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
    """Objects that took long to traverse are frozen, so they are not traversed again.

    So a full collection costs as much as what was allocated since, not as much as all that exists:
    otherwise each stream in memory costs every full collection 2 microseconds. A frozen object is
    still freed when its last reference goes. A cycle that is frozen before it is garbage would
    leak: requests leave no cycles, which `tests/hostile/test_cycles.py` checks.
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
