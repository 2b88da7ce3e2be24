"""A server in which a Python call fails some calls after a commit was handed to storage.

`HEADRACE_FAULTS` is a seed. After some of the commits a number of calls is drawn; that many calls
into the engine, the HTTP layer or the subscriptions later, on the event loop's thread, the call
raises before its first line. So every call that can follow a commit fails sooner or later: those
that build the answer, those that wake readers, those of the next request, of anybody. Each fault
has a number, which the log shows with its traceback.

Storage itself is left alone: a fault there is a failed commit, which stops the server, and
`tests/durability` has those. So are the functions below, each by its module and its full name.

`HEADRACE_MUTANT=undead` takes away what is tested: an exchange still answers after its first
answer, as when the connection was the exchange.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from functools import reduce
from types import CodeType, FrameType
from typing import Any

from headrace.http.app_factory import Assembly
from headrace.http.connections.http_exchange import HttpExchange
from headrace.protocol.responses import Response
from headrace.storage import memory
from headrace.storage.acid import acid_storage
from headrace.storage.file import file_storage

CALLS_MAX = 60
ARMED_SHARE = 0.12  # of all commits
FAULTY = ("headrace.engine.", "headrace.http.", "headrace.subscriptions.", "headrace.protocol.")
# What hands a fault on to the request it belongs to, or is called by the event loop itself:
# nothing is above these to catch one.
GUARDS = {
    "headrace.engine.engine:Engine._committed",
    "headrace.engine.engine:Engine._commit_failed",
    "headrace.engine.engine:Engine._existence_committed",
    "headrace.engine.fan_out:FanOut._begin_round",
    "headrace.engine.fan_out:FanOut._call_due",
    "headrace.engine.fan_out:FanOut._end_round",
    "headrace.engine.fan_out:FanOut._round_failed",
    "headrace.engine.fan_out:FanOut._wake",
    "headrace.engine.fan_out:FanOut.call_listeners",
    "headrace.engine.engine:Engine._note",
    "headrace.engine.slices:Slices._schedule",
    "headrace.engine.slices:Slices._turn",
    "headrace.engine.slices:_has_more",
    "headrace.engine.stream_runtime:Stream.has_listener",
    "headrace.engine.stream_runtime:Stream.listeners",
    "headrace.http.connections.acceptor:Acceptor._connect",
    "headrace.http.connections.acceptor:Acceptor._connected",
    "headrace.http.connections.connection:Connection.connection_made",
    "headrace.http.connections.connection:Connection.connection_lost",
    "headrace.http.deadlines:DeadlineQueue._fire",
    "headrace.http.connections.request_turns:Turns._round",
    "headrace.http.connections.send_windows:UnsentBudget._wake",
    "headrace.subscriptions.dispatcher:Dispatcher.attempt",
    "headrace.subscriptions.dispatcher:Dispatcher.on_defect",
    "headrace.subscriptions.dispatcher:Dispatcher._wake_due",
    "headrace.subscriptions.dispatcher:Dispatcher._hand_over_all",
    "headrace.subscriptions.dispatcher:Dispatcher._announce_again",
}
# Below these a defect stops the server, loudly, by design: what it does once a second, and what
# it does between a change in memory and the commit of it. A connection that cannot be made is the
# event loop's, which has nobody to tell.
SUPERVISED = {
    "headrace.engine.creation:Creation._begin_stream",
    "headrace.engine.internal_append:announce",
    "headrace.engine.internal_append:trim",
    "headrace.engine.removal:Removal._take_away",
    "headrace.engine.snapshots:Snapshots._publish",
    "headrace.http.connections.acceptor:Acceptor.new_connection",
    "headrace.http.app_factory:Assembly._run_maintenance",
    "headrace.http.connections.connection:Connection.drain",
    "headrace.http.lifespan:Lifespan._tick",
    "headrace.http.server:_serve",
    "headrace.protocol.stream:apply_append",
}

_random = random.Random(int(os.environ["HEADRACE_FAULTS"]))
_left = 0
_planted = 0
_started = False


class PlantedFault(Exception):
    """What a defect of ours would raise."""


def _codes(names: set[str]) -> set[CodeType]:
    """Fails where a name leads nowhere: what was renamed must be named anew here."""
    found = set()
    for name in names:
        module, _, path = name.partition(":")
        function = reduce(getattr, path.split("."), importlib.import_module(module))
        found.add(function.__code__)
    return found


_guards = _codes(GUARDS)
_supervised = _codes(SUPERVISED)


def _count(frame: FrameType, event: str, argument: Any) -> None:
    global _left, _planted
    if event != "call" or frame.f_code in _guards:
        return
    if not frame.f_globals.get("__name__", "").startswith(FAULTY) or _is_supervised(frame):
        return
    _left -= 1
    if _left <= 0:
        sys.setprofile(None)
        _planted += 1
        fault = f"number {_planted}: {frame.f_code.co_qualname}"
        print(f"planted fault {fault}", file=sys.stderr, flush=True)
        raise PlantedFault(fault)


def _is_supervised(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _supervised:
            return True
        frame = frame.f_back
    return False


def _arm() -> None:
    global _left
    if _random.random() < ARMED_SHARE:
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


def _respond_again(self: HttpExchange, response: Response) -> None:
    if self._connection is not None:
        self._connection.respond(self.request, response)


_assembly_start = Assembly.start
Assembly.start = _start  # type: ignore[method-assign]
for _storage in (acid_storage.AcidStorage, file_storage.FileStorage, memory.MemoryStorage):
    _storage.commit = _arming(_storage.commit)  # type: ignore[method-assign]
if os.environ.get("HEADRACE_MUTANT") == "undead":
    HttpExchange.respond = _respond_again  # type: ignore[method-assign]
