"""How the process uses memory: what the collector looks at, what the allocator gives back."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Final

# A request leaves next to nothing behind for the collector, so it need not look often.
_GC_THRESHOLD: Final = 10_000
# Answers of a megabyte come and go, and bodies of up to 16. Memory that goes back to the kernel
# after each of them costs a page fault for every 4 KiB of the next: catch-up reads take half as
# long without.
_KEPT_FREE_BYTES: Final = 32 * 1024 * 1024
_MAPPED_BYTES_MIN: Final = 32 * 1024 * 1024
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def settle() -> None:
    """Call once the server is up: everything made so far lives as long as the process."""
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    with suppress(AttributeError, OSError):  # a C library other than glibc
        library = ctypes.CDLL(None)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)
        library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)
