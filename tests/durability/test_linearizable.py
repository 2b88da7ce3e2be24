"""What concurrent clients see of a stream fits one order of events."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from headrace.testing.history import Recorder, lines_as_log
from headrace.testing.linearizability import (
    NEVER,
    Operation,
    OperationKind,
    Record,
    digest_of,
    violation,
)
from headrace.testing.server_process import ServerProcess
from tests.durability.modes import ALL_MODES, settings

PATH = "/v1/stream/history"
CLIENTS = 8
OPERATIONS = 1400
DEADLINE_SECS = 300.0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ALL_MODES)
def test_appends_reads_heads_and_a_close_are_linearizable(mode: str, tmp_path: Path) -> None:
    with ServerProcess(settings(mode, tmp_path / "data"), cwd=str(tmp_path)) as server:
        httpx.put(server.url + PATH, headers={"content-type": "text/plain"})
        recorders = [
            Recorder(server.port, PATH, f"c{number}", OPERATIONS, number)
            for number in range(CLIENTS)
        ]
        closer = ClosesHalfway(server.port, PATH, "closer", OPERATIONS, CLIENTS)
        run([*recorders, closer])
        final = httpx.get(server.url + PATH, params={"offset": "-1"})
    history = [operation for one in [*recorders, closer] for operation in one.history]
    assert {operation.kind for operation in history} == set(OperationKind)
    assert len(history) > CLIENTS * OPERATIONS
    assert violation(history, lines_as_log(final.content)) is None


class ClosesHalfway(Recorder):
    def play(self, operations: int) -> None:
        super().play(operations // 2)
        self.close()
        super().play(operations // 2)


def run(recorders: list[Recorder]) -> None:
    for recorder in recorders:
        recorder.start()
    for recorder in recorders:
        recorder.join(DEADLINE_SECS)
        assert not recorder.is_alive(), recorder.name


# -- the checker itself: each planted violation is found, and nothing else is ----------------


@dataclass
class Told:
    """Ten appends one after another, each followed by a read; then the log they left."""

    history: list[Operation]
    log: list[Record]

    def replace(self, index: int, **fields: float) -> list[Operation]:
        changed = self.history[index]._replace(**fields)  # type: ignore[arg-type]
        return [*self.history[:index], changed, *self.history[index + 1 :]]


@pytest.fixture
def told() -> Told:
    history: list[Operation] = []
    log: list[Record] = []
    seen = b""
    for number in range(10):
        data = b"record %d\n" % number
        seen += data
        log.append(Record(len(seen), data))
        now = number * 10
        history.append(Operation(now, now + 2, OperationKind.APPEND, len(seen), digest_of(data)))
        history.append(Operation(now + 4, now + 6, OperationKind.READ, len(seen), digest_of(seen)))
    return Told(history, log)


def test_a_legal_history_is_accepted(told: Told) -> None:
    assert violation(told.history, told.log) is None


def test_a_stale_read_is_found(told: Told) -> None:
    early = told.history[1]
    history = told.replace(15, end=early.end, digest=early.digest or 0)
    assert "returned before" in (violation(history, told.log) or "")


def test_a_read_of_the_future_is_found(told: Told) -> None:
    late = told.history[15]
    history = told.replace(1, end=late.end, digest=late.digest or 0)
    assert "returned before" in (violation(history, told.log) or "")


def test_a_lost_append_is_found(told: Told) -> None:
    log = [record for record in told.log if record is not told.log[4]]
    assert "acknowledged append is at None" in (violation(told.history, log) or "")


def test_a_duplicate_record_is_found(told: Told) -> None:
    log = [*told.log, Record(told.log[-1].end + 9, told.log[3].data)]
    assert "twice" in (violation(told.history, log) or "")


def test_swapped_records_are_found(told: Told) -> None:
    log = list(told.log)
    log[2], log[7] = Record(log[2].end, log[7].data), Record(log[7].end, log[2].data)
    assert "acknowledged append is at" in (violation(told.history, log) or "")


def test_a_refused_append_in_the_log_is_found(told: Told) -> None:
    history = [one for one in told.history if one is not told.history[8]]
    history.append(told.history[8]._replace(kind=OperationKind.REFUSED))
    assert "refused append is in the log" in (violation(history, told.log) or "")


def test_bytes_that_are_no_prefix_are_found(told: Told) -> None:
    assert "not a prefix" in (violation(told.replace(5, digest=1), told.log) or "")


def test_a_tail_that_never_was_is_found(told: Told) -> None:
    assert "never was" in (violation(told.replace(5, end=told.log[1].end + 1), told.log) or "")


def test_an_open_read_after_an_acknowledged_close_is_found(told: Told) -> None:
    last = told.log[-1].end
    close = Operation(100, 102, OperationKind.CLOSE, last)
    legal = [*told.history, close, Operation(104, 106, OperationKind.READ_CLOSED, last)]
    assert violation(legal, told.log) is None
    broken = [*told.history, close, Operation(104, 106, OperationKind.READ, last)]
    assert "returned before" in (violation(broken, told.log) or "")


@pytest.mark.parametrize("happened", [True, False])
def test_an_append_without_an_answer_may_have_happened_or_not(told: Told, happened: bool) -> None:
    data = b"unanswered\n"
    unknown = Operation(100, NEVER, OperationKind.APPEND, 0, digest_of(data))
    log = [*told.log, Record(told.log[-1].end + len(data), data)] if happened else told.log
    assert violation([*told.history, unknown], log) is None
