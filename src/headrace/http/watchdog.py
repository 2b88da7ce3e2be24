"""The watchdog of the event loop: how long the loop was held up, and by what.

The loop stamps a heartbeat. A thread looks at it now and then; while it is late, it notes what the
loop's thread is doing. The heartbeat that comes late reports the stall: its length, the processor
time that the loop's thread spent in it, and the operation and function that were seen most.

The length alone accuses the server of what a busy machine does. So two more figures are kept: the
processor time, and the time in which the loop was held. That is the stall without what threads of
this process waited for a processor: the loop computed, or it was in a call that did not return.
Other threads count because the loop may wait for one that has the GIL and no processor.

Nothing here runs within a request: a request only leaves word that it has begun.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import accumulate
from operator import itemgetter
from threading import Event, Thread, get_ident, get_native_id
from types import FrameType
from typing import Final, NamedTuple, Protocol

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from headrace.clock import monotonic, thread_cpu
from headrace.http.exchange import Request
from headrace.http.metrics import METRICS

logger = logging.getLogger(__name__)

BEAT_SECS: Final = 0.05
WATCH_SECS: Final = 0.1  # how often the thread looks while all is well: each look takes the GIL
SAMPLE_SECS: Final = 0.02
STALL_SECS_MIN: Final = 0.05  # shorter ones are not counted: requests queue for longer under load
REPEAT_SECS: Final = 10.0  # between two lines about the same operation, unless it got worse
BUCKETS_SECS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# What the loop is doing, by the module that it called into. Requests go by their own operation.
_TRANSPORTS: Final = frozenset(
    f"headrace.http.{name}"
    for name in ("connections.connection", "connections.large_bodies", "connections.reader", "asgi")
)
_ROUTES: Final = "headrace.http.routes"
_ASSEMBLY: Final = "headrace.http.app_factory"  # its `tick`, once a second
_BACKGROUND: Final = (
    ("headrace.engine.feed", "feed"),
    ("headrace.http.handlers.streamed_bodies", "streamed-body"),
    ("headrace.http.deadlines", "live-timeout"),
    ("headrace.http.server", "tick"),
    ("headrace.storage.committer", "commit"),
    ("headrace.subscriptions.delivery", "webhook"),
    ("headrace.subscriptions.webhook_sender", "webhook"),
    ("headrace.subscriptions", "wake"),
)
# These are called by requests as well, which shows unless the caller is compiled.
_SHARED: Final = (("headrace.storage", "storage"), ("headrace.engine", "engine"))
OTHER: Final = "other"
UNKNOWN: Final = "unknown"


class Where(NamedTuple):
    """What the loop's thread was doing."""

    operation: str
    function: str


class Stall(NamedTuple):
    secs: float
    cpu_secs: float
    held_secs: float
    where: Where


class Watched(Protocol):
    """The application, as far as the watchdog looks at it."""

    current: Request | None


class _Histogram:
    __slots__ = ("counts", "secs")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_SECS) + 1)
        self.secs = 0.0

    def observe(self, secs: float) -> None:
        self.counts[bisect_left(BUCKETS_SECS, secs)] += 1
        self.secs += secs


class _Told(NamedTuple):
    """The last line about an operation."""

    at: float
    held_secs: float


class StallLog:
    """What is counted and said of stalls."""

    def __init__(self, warn_secs: float) -> None:
        self.longest: Stall | None = None
        self._warn_secs = warn_secs
        self._secs: defaultdict[str, _Histogram] = defaultdict(_Histogram)
        self._cpu_secs: defaultdict[str, _Histogram] = defaultdict(_Histogram)
        self._held_secs: defaultdict[str, _Histogram] = defaultdict(_Histogram)
        self._told: dict[str, _Told] = {}
        self._not_logged: Counter[str] = Counter()

    def add(self, stall: Stall, now: float) -> None:
        operation = stall.where.operation
        self._secs[operation].observe(stall.secs)
        self._cpu_secs[operation].observe(stall.cpu_secs)
        self._held_secs[operation].observe(stall.held_secs)
        if self.longest is None or stall.cpu_secs > self.longest.cpu_secs:
            self.longest = stall
        if self._warn_secs and stall.secs >= self._warn_secs:
            self._tell(stall, now)

    def _tell(self, stall: Stall, now: float) -> None:
        """One line, unless one like it was written a moment ago: a hostile client pays for none."""
        operation = stall.where.operation
        told = self._told.get(operation)
        if told is not None and now < told.at + REPEAT_SECS and stall.held_secs <= told.held_secs:
            self._not_logged[operation] += 1
            return
        self._told[operation] = _Told(now, stall.held_secs)
        facts = {
            "secs": round(stall.secs, 3),
            "cpu_secs": round(stall.cpu_secs, 3),
            "held_secs": round(stall.held_secs, 3),
            "operation": operation,
            "function": stall.where.function,
            "not_logged": self._not_logged.pop(operation, 0),
        }
        if stall.held_secs >= self._warn_secs:
            logger.warning("the event loop was held up", extra=facts)
        else:
            # Not ours: the process was not scheduled.
            logger.info("the event loop ran late", extra=facts)

    def collect(self) -> Iterator[Metric]:
        yield self._family("headrace_event_loop_stall_seconds", self._secs)
        yield self._family("headrace_event_loop_stall_cpu_seconds", self._cpu_secs)
        yield self._family("headrace_event_loop_stall_held_seconds", self._held_secs)
        name = "headrace_event_loop_longest_stall_cpu_seconds"
        family = GaugeMetricFamily(name, METRICS[name], labels=Where._fields)
        if self.longest is not None:
            family.add_metric(self.longest.where, self.longest.cpu_secs)
        yield family

    def _family(self, name: str, histograms: dict[str, _Histogram]) -> Metric:
        family = HistogramMetricFamily(name, METRICS[name], labels=("operation",))
        bounds = [*map(str, BUCKETS_SECS), "+Inf"]
        for operation, found in sorted(histograms.items()):
            family.add_metric(
                [operation],
                list(zip(bounds, accumulate(found.counts), strict=True)),
                found.secs,
            )
        return family


class RunQueue:
    """How long threads of this process have waited for a processor."""

    _TASKS: Final = "/proc/self/task"
    _LISTED_EVERY: Final = 20  # marks, a second: to list threads takes longer than to ask for each

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._marks = 0

    def mark(self) -> None:
        if self._marks % self._LISTED_EVERY == 0:
            self._list_threads()
        self._marks += 1
        self._before = self._waited_ns()

    def held_secs(self, secs: float, cpu_secs: float, thread_id: int) -> float:
        """What is left of `secs` since `mark` without the time that the thread waited.

        Nor what another one did: it may have had the GIL meanwhile. Only the longest of these
        counts, as they wait at the same time.
        """
        now, before = self._waited_ns(), self._before
        waited_ns = {thread: ns - before.get(thread, 0) for thread, ns in now.items()}
        own_ns = waited_ns.pop(str(thread_id), None)
        if own_ns is None:  # the kernel does not say
            return cpu_secs
        return max(cpu_secs, secs - (own_ns + max(waited_ns.values(), default=0)) / 1e9)

    def _waited_ns(self) -> dict[str, int]:
        """Of each thread, since it began."""
        found = {}
        for thread, file in self._files.items():
            with suppress(OSError):  # it has ended
                found[thread] = int(os.pread(file, 64, 0).split()[1])
        return found

    def _list_threads(self) -> None:
        with suppress(OSError):  # another system, or a kernel that does not count
            threads = set(os.listdir(self._TASKS))
            for ended in self._files.keys() - threads:
                os.close(self._files.pop(ended))
            for thread in threads - self._files.keys():
                path = f"{self._TASKS}/{thread}/schedstat"
                self._files[thread] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])


FULL_COLLECTION: Final = 2  # the oldest generation: everything that Python keeps track of
COLLECTION: Final = Where("garbage-collection", "gc.collect")


class Watchdog:
    """Watches the loop that it is started on, until it is stopped."""

    def __init__(self, watched: Watched, loop: asyncio.AbstractEventLoop, stalls: StallLog) -> None:
        self._watched = watched
        self._loop = loop
        self._stalls = stalls
        self._thread: Thread | None = None
        self._stopping = Event()
        self._loop_thread = self._loop_tid = 0
        self._base: FrameType | None = None
        self._begun: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seen_secs: defaultdict[Where, float] = defaultdict(float)
        self._run_queue = RunQueue()
        self._cpu = 0.0
        self._due = 0.0
        self._collecting_since = 0.0

    def start(self) -> None:
        gc.callbacks.append(self._on_collection)
        self._loop_thread, self._loop_tid = get_ident(), get_native_id()
        self._begun = self._loop.call_soon(self._begin)

    def stop(self) -> None:
        self._stopping.set()
        gc.callbacks.remove(self._on_collection)
        for handle in (self._begun, self._timer):
            if handle is not None:
                handle.cancel()
        if self._thread is not None:
            self._thread.join()
        self._run_queue.close()
        self._base = None

    # -- on the loop -----------------------------------------------------------------------

    def _begin(self) -> None:
        # Callbacks are called from this frame, whatever the loop implementation.
        self._base = sys._getframe().f_back
        self._rest()
        self._thread = Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        now = monotonic()
        late_secs, cpu_secs = now - self._due, thread_cpu() - self._cpu
        if late_secs >= STALL_SECS_MIN:
            where = self._held_by()
            # At most the stall itself: the loop may have been busy in the moments before, too.
            cpu_secs = min(late_secs, cpu_secs)
            held_secs = self._run_queue.held_secs(late_secs, cpu_secs, self._loop_tid)
            self._stalls.add(Stall(late_secs, cpu_secs, held_secs, where), now)
        self._rest()

    def _rest(self) -> None:
        """Until the next heartbeat."""
        self._watched.current = None
        self._seen_secs = defaultdict(float)
        self._cpu = thread_cpu()
        self._run_queue.mark()
        self._due = monotonic() + BEAT_SECS
        self._timer = self._loop.call_later(BEAT_SECS, self._beat)

    def _held_by(self) -> Where:
        """What was seen most; what was begun last where nothing could be seen."""
        if self._seen_secs:
            return max(self._seen_secs.items(), key=itemgetter(1))[0]
        request = self._watched.current
        return Where(UNKNOWN if request is None else request.operation, UNKNOWN)

    # -- on whichever thread collects: the others wait for it ------------------------------

    def _on_collection(self, phase: str, facts: dict[str, int]) -> None:
        if facts["generation"] < FULL_COLLECTION:
            return
        if phase == "start":
            self._collecting_since = monotonic()
        else:
            self._seen_secs[COLLECTION] += monotonic() - self._collecting_since

    # -- on the watchdog's own thread ------------------------------------------------------

    def _watch(self) -> None:
        while not self._stopping.wait(WATCH_SECS):
            since = self._due
            while monotonic() > self._due + STALL_SECS_MIN:
                since = self._sample(since)
                if self._stopping.wait(SAMPLE_SECS):
                    return

    def _sample(self, since: float) -> float:
        """Note what the loop is doing, for all the time since the last sample; returns the time
        now.

        A call that holds the GIL holds up this thread, too: it is seen when it returns. A compiled
        function leaves nothing on the stack; of that the request that was begun last must tell.
        """
        now, seen_secs = monotonic(), self._seen_secs
        frame = sys._current_frames().get(self._loop_thread)
        found = where(frame, self._base, self._watched.current)
        if found is not None:
            seen_secs[found] += now - since
        return now


def where(frame: FrameType | None, base: FrameType | None, request: Request | None) -> Where | None:
    """The operation that a stack belongs to, and its innermost function of ours; None is idle."""
    ours: list[str] = []
    function = innermost = None
    while frame is not None and frame is not base:
        module = str(frame.f_globals.get("__name__", ""))
        innermost = innermost or f"{module}.{frame.f_code.co_qualname}"
        if module.startswith("headrace."):
            function = function or f"{module}.{frame.f_code.co_qualname}"
            ours.append(module)
        frame = frame.f_back
    if innermost is None:
        return None
    if function is None:
        return Where(OTHER, innermost)  # an ASGI server's own, or another application's
    return Where(_operation(ours, request), function.removeprefix("headrace."))


def _operation(modules: list[str], request: Request | None) -> str:
    """`modules` are those of a stack, innermost first, without compiled ones."""
    entered = modules[-1]
    if _ASSEMBLY in modules:
        return "sweep"
    if entered in _TRANSPORTS and _ROUTES not in modules:
        return "connection"
    found = _named(_BACKGROUND, entered)
    if found is None and request is not None:
        return request.operation
    return found or _named(_SHARED, entered) or OTHER


def _named(operations: Iterable[tuple[str, str]], module: str) -> str | None:
    return next((name for prefix, name in operations if module.startswith(prefix)), None)
