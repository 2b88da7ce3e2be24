"""One disk call fails: whichever it is, what was answered stays true and nobody is left waiting.

A scripted history makes every kind of disk call there is. It is run once for each call it makes
and each way that call can fail, then the machine is cut off or the process killed, and what is
recovered is compared with what was answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest

from headrace.engine.buckets import Bucket
from headrace.engine.creation import Confirmed
from headrace.engine.engine import Deleted
from headrace.errors import CommitFailed, StoredBytesDamaged
from headrace.protocol.producers import ProducerHeaders
from headrace.protocol.requests import Append, Create, ForkRequest
from headrace.protocol.stream import Appended, Snapshot
from headrace.subscriptions.requests import parse_config
from headrace.testing.simulated_disk import Fault, SimulatedFile
from tests.durability.crash_actions import BASE_URL, SUBSCRIPTION
from tests.durability.crash_machine import Machine, Violation, small_windows

FAULTS = [Fault.EIO, Fault.ENOSPC, Fault.SHORT]
ENDS = ["power cut", "kill"]
TEXT = "text/plain"


@pytest.fixture(autouse=True)
def windows() -> Iterator[None]:
    with small_windows():
        yield


def new_machine() -> Machine:
    machine = Machine(0)
    machine.segment_bytes = 700
    return machine


def play(machine: Machine) -> None:
    """Creates, appends, producers, forks, deletes, documents, reads, checkpoints, buckets."""
    machine.start()
    play_buckets(machine)
    for name in ("a", "b", "b2"):
        machine.create(name, Create(b"first", TEXT))
    for number in range(8):
        machine.append("a", Append(b"%d" % number * 60))
        machine.append("b", Append(b"x", producer=ProducerHeaders(b"p", 0, number)))
        machine.loop.run()
        tick(machine)
    machine.keep({"note": b"kept", "other": b"too"})
    machine.create("c", Create(fork=ForkRequest("a", None, 0)), "a")
    machine.loop.run()
    machine.append("c", Append(b"own"))
    machine.append("b", Append(b"", close=True))
    machine.delete("a")
    machine.read("c")
    tick(machine)
    machine.keep({"other": None})
    machine.delete("c")
    machine.read("b")
    machine.append("b", Append(b"refused"))
    for _ in range(4):
        machine.create("d", Create(b"y" * 200, TEXT))
        machine.delete("d")
        tick(machine)
    for number in range(6):  # these stay in the journal
        machine.append("b2", Append(b"%d" % number))
        machine.loop.run()


def play_buckets(machine: Machine) -> None:
    """Snapshots that replace one another, space that they free, a subscription, and their ends."""
    machine.create_bucket("bucket")
    machine.loop.run()
    machine.create("/bucket/doc", Create(b"first" * 40, TEXT))
    machine.loop.run()
    tick(machine)
    for number in range(2):
        machine.append("/bucket/doc", Append(b"%d" % number * 60))
        machine.loop.run()
        doc = machine.engine.streams.get("/bucket/doc")
        if doc is not None:
            machine.publish("/bucket/doc", doc.state.tail, b"folded %d" % number)
        tick(machine)
    machine.create("/bucket/fork", Create(fork=ForkRequest("/bucket/doc", None, 0)), "/bucket/doc")
    machine.control(lambda manager: manager.put("s", parse_config(SUBSCRIPTION), BASE_URL))
    machine.delete("/bucket/doc")
    tick(machine)
    machine.read_snapshot("/bucket/fork")
    machine.control(lambda manager: manager.claim("s", "worker"))
    machine.delete("/bucket/fork")
    tick(machine)
    machine.delete_bucket("bucket")
    machine.control(lambda manager: manager.delete("s"))
    tick(machine)


def tick(machine: Machine) -> None:
    """Once a second: seals, checkpoints, segments given up."""
    machine.engine.housekeeping.run()
    machine.loop.run()


def calls_made() -> list[str]:
    """Which calls the history makes, in order."""
    machine = new_machine()
    made: list[str] = []
    count = machine.disk.call

    def counted(name: str, **rest: Any) -> None:
        made.append(name)
        count(name, **rest)

    machine.disk.call = counted  # type: ignore[assignment]
    play(machine)
    machine.finish()
    assert set(made) >= {
        *("open", "read", "write", "sync", "size", "truncate", "list", "make_directory"),
        *("rename", "remove", "sync_directory", "sync_everything", "punch"),
    }
    return made


def calls_that(fault: Fault) -> list[int]:
    """The calls that can fail so; only a write can be short, any other would be out of space."""
    calls = enumerate(calls_made(), 1)
    return [number for number, name in calls if fault is not Fault.SHORT or name == "write"]


def fail(number: int, fault: Fault, ends: Sequence[str] = ENDS) -> None:
    """The history with one failing call, and for each end a look at what is left."""
    machine = new_machine()
    machine.disk.random.seed(number)
    machine.disk.faults = {number: fault}
    with suppress(OSError):  # raised where it could not even start
        play(machine)
        tick(machine)  # what met a full disk is tried again
    machine.loop.run()
    if machine.unanswered:
        raise Violation(f"{machine.unanswered} were left without an answer")
    check_nothing_was_taken_after_a_failure([outcome for _, outcome in machine.answers])
    disk, witness = machine.disk, machine.witness
    for end in ends:
        machine.disk, machine.witness = deepcopy(disk), witness
        if end == "kill":
            machine.disk.kill()
            machine.start()
        machine.disk.cut_power()
        machine.start()


def check_nothing_was_taken_after_a_failure(outcomes: list[Any]) -> None:
    failed = False
    for outcome in outcomes:
        failed = failed or isinstance(outcome, CommitFailed)
        taken = isinstance(outcome, Appended | Deleted | Snapshot | Bucket) or (
            isinstance(outcome, Confirmed) and outcome.created
        )
        if failed and taken:
            raise Violation(f"{outcome} was acknowledged after a failed commit")


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_any_one_call_may_fail(fault: Fault) -> None:
    failed = {}
    for number in calls_that(fault):
        try:
            fail(number, fault)
        except (Violation, StoredBytesDamaged) as violation:
            failed[number] = str(violation)
    assert failed == {}


@pytest.mark.slow
def test_a_storage_that_syncs_again_after_a_failed_sync_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second sync succeeds, and means nothing: the kernel has given the pages up."""
    sync = SimulatedFile.sync

    def sync_twice(file: SimulatedFile) -> None:
        try:
            sync(file)
        except OSError:
            sync(file)

    monkeypatch.setattr(SimulatedFile, "sync", sync_twice)
    for number in calls_that(Fault.EIO):
        try:
            fail(number, Fault.EIO, ["power cut"])
        except (Violation, StoredBytesDamaged):
            return
    pytest.fail("no failing call found anything wrong")
