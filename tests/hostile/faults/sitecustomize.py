"""A server in which a Python call fails some calls after a commit was handed to storage.

`HEADRACE_FAULTS` is a seed. After each commit a number of calls is drawn; that many calls into the
engine, the HTTP layer or the subscriptions later, on the event loop's thread, the call raises
before its first line. So every call that can follow a commit fails sooner or later: those that
build the answer, those that wake readers, those of the next request, of anybody.

Storage itself is left alone: a fault there is a failed commit, which stops the server, and
`tests/durability` has those. So is the one function that guards all others.
"""

from __future__ import annotations

import os
import random
import sys
from types import FrameType
from typing import Any

from headrace.http.app_factory import Assembly
from headrace.storage import memory
from headrace.storage.file import file_storage

CALLS_MAX = 60
FAULTY = ("/headrace/engine/", "/headrace/http/", "/headrace/subscriptions/", "/headrace/protocol/")
# What hands a fault on to the request it belongs to, or is called by the event loop itself:
# nothing stands behind these to catch one.
GUARDS = {
    "_committed",
    "_commit_failed",
    "_existence_committed",
    "call_listeners",
    "_call_due",
    "_begin_round",
    "_end_round",
    "_round_failed",
    "_wake",
    "has_listener",
    "listeners",
    "_note",
    "_fire",
    "_round",
    "connection_made",
    "connection_lost",
}
# Below these a defect stops the server, loudly, by design: what it does once a second, and what
# it does between a change in memory and the commit of it. A connection that cannot be made is the
# event loop's, which has nobody to tell.
SUPERVISED = {"_tick", "stop", "drain", "new_connection", "_run_maintenance"}
SUPERVISED |= {"apply_append", "announce", "trim", "_begin_stream", "_take_away", "_publish"}

_random = random.Random(int(os.environ["HEADRACE_FAULTS"]))
_left = 0
_started = False


class PlantedFault(Exception):
    """What a defect of ours would raise."""


def _count(frame: FrameType, event: str, argument: Any) -> None:
    global _left
    code = frame.f_code
    if event != "call" or code.co_name in GUARDS:
        return
    if not any(part in code.co_filename for part in FAULTY) or _is_supervised(frame):
        return
    _left -= 1
    if _left <= 0:
        sys.setprofile(None)
        raise PlantedFault(code.co_qualname if hasattr(code, "co_qualname") else code.co_name)


def _is_supervised(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in SUPERVISED:
            return True
        frame = frame.f_back
    return False


def _arm() -> None:
    global _left
    _left = _random.randint(1, CALLS_MAX)
    sys.setprofile(_count)


def _arming(commit: Any) -> Any:
    def commit_then_fail(*arguments: Any) -> None:
        commit(*arguments)
        if _started:
            _arm()

    return commit_then_fail


def _start(self: Assembly) -> None:
    global _started
    _assembly_start(self)
    _started = True


_assembly_start = Assembly.start
Assembly.start = _start  # type: ignore[method-assign]
file_storage.FileStorage.commit = _arming(file_storage.FileStorage.commit)  # type: ignore[method-assign]
memory.MemoryStorage.commit = _arming(memory.MemoryStorage.commit)  # type: ignore[method-assign]
