"""A sampling profiler for one thread: SIGPROF every few milliseconds of CPU, one stack each.

CPython runs a signal handler where it next checks for one: at a function's start, at a loop's
jump back, and after a call to C. So C code is charged to the line that called it. A sample at a
function's very start was spent before it, in its caller: it is charged there. When that caller is
the event loop, the time is uvloop's own: epoll, recv, and the way to the callback.
"""

from __future__ import annotations

import dis
import json
import signal
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

INTERVAL_S = 0.001  # the kernel rounds it up to its tick, 4 ms on most machines
RESUME = dis.opmap["RESUME"]
START_SIGNAL = signal.SIGUSR1


class Sampler:
    def __init__(self) -> None:
        self._lines: Counter[tuple[CodeType, int]] = Counter()
        self._inclusive: Counter[CodeType] = Counter()

    def start_on_signal(self) -> None:
        """Waits for the start signal, so that imports and start-up are not in the profile."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.signal(START_SIGNAL, self._start)

    def _start(self, _signal: int, _frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)

    def _sample(self, _signal: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_code[frame.f_lasti] == RESUME:
            frame = frame.f_back or frame
        if frame is None:
            return
        self._lines[frame.f_code, frame.f_lineno] += 1
        seen = set()
        while frame is not None:
            seen.add(frame.f_code)
            frame = frame.f_back
        self._inclusive.update(seen)

    def save(self, path: Path) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        document = {
            "lines": [
                [code.co_filename, code.co_qualname, line, count]
                for (code, line), count in self._lines.items()
            ],
            "inclusive": [
                [code.co_filename, code.co_qualname, count]
                for code, count in self._inclusive.items()
            ],
        }
        path.write_text(json.dumps(document))
