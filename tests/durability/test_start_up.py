"""Start-up work does not grow with history: counted in calls through the disk seam."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.requests import Append, Create
from headrace.storage.file import stream_files
from headrace.storage.file.journal import Journal
from tests.durability.crash_machine import Machine, small_windows

STREAMS = 4
SHORT, LONG = 20, 400  # appends per stream


@pytest.fixture(autouse=True)
def windows() -> Iterator[None]:
    with small_windows():
        yield


def start_up_calls(appends: int, *, end: str) -> Counter[str]:
    """What a start does through the seam after so much history, most of it in stream files."""
    machine = Machine(1)
    machine.segment_bytes = 1500
    machine.start()
    for number in range(STREAMS):
        machine.create(f"s{number}", Create(b"", "application/octet-stream"))
    for _ in range(appends):
        for number in range(STREAMS):
            # A stream stays below its limit; what matters is how much came before.
            machine.append(f"s{number}", Append(b"12345678"))
        machine.loop.run()
        machine.engine.housekeeping.run()
        machine.loop.run()
    if end == "stop":
        machine.finish()
    machine.disk.kill()
    before = Counter(machine.disk.calls)
    opened = list(machine.disk.opened)
    machine.start_unwitnessed()
    calls = Counter(machine.disk.calls)
    calls.subtract(before)
    registry = stream_files.path(machine.engine.streams[REGISTRY_NAME].state.id, "")
    touched = {
        name
        for name in machine.disk.opened[len(opened) :]
        if name.startswith("streams/") and not name.startswith(registry)
    }
    assert not touched, "a start opens no client's stream"
    assert machine.engine.streams["s0"].state.tail.messages == appends
    return calls


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_start_makes_as_many_calls_after_a_long_history_as_after_a_short_one(end: str) -> None:
    few, many = start_up_calls(SHORT, end=end), start_up_calls(LONG, end=end)
    print(f"{end}: {few.total()} calls after {SHORT} appends a stream, {many.total()} after {LONG}")
    # The journal that a kill leaves behind is a segment or two, filled to a different degree.
    allowance = 12 if end == "kill" else 0
    assert many.total() <= few.total() + allowance


def test_a_start_that_reads_history_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant never gives a segment up, so that every start replays everything."""
    monkeypatch.setattr(Journal, "recycle", lambda journal, applied_lsn: None)
    few, many = start_up_calls(SHORT, end="stop"), start_up_calls(LONG, end="stop")
    assert many.total() > 2 * few.total()
