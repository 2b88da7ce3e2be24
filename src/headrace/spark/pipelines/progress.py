"""How a pipeline is doing, in a file that anyone may read while it runs.

Written whole and renamed, so that a reader never meets half of it.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from headrace.spark.object_store import S3Path
from headrace.spark.places import Place, write_whole

PROGRESS_FILE = "progress.json"
_SILENCE_SECS_MAX = 60.0  # six reports to S3
STARTING, RUNNING, STOPPED, FAILED, DEAD = "starting", "running", "stopped", "failed", "dead"
RETRYING = "retrying"  # the last attempt has failed, and none has got further since


@dataclass
class Progress:
    """`lag_secs` is the age of the oldest record that may not be through yet, 0 when idle.

    `lag_rows` counts messages behind where the source can count them, else None; `lag_bytes` their
    bytes, or those of Postgres's log. Times are seconds since 1970.
    """

    pipeline: str
    pid: int
    state: str = STARTING
    started_at: float = 0.0
    updated_at: float = 0.0
    batch: int = -1
    rows: int = 0
    rows_per_sec: float = 0.0
    batch_secs: float = 0.0
    batch_steps_ms: dict[str, int] = field(default_factory=dict)  # by Spark's names for them
    lag_secs: float = 0.0
    lag_rows: int | None = None
    lag_bytes: int | None = None
    quarantined: int = 0  # since the checkpoint was made
    batches: int = 0  # with rows, since the start
    steps_total_ms: dict[str, int] = field(default_factory=dict)  # of all these batches
    last_batch_at: float = 0.0
    failures: int = 0
    failures_in_row: int = 0  # also those of earlier processes with this state
    caught_up_at: float = 0.0  # everything before has been delivered; outlives a process, too
    spark_ui: str | None = None  # the address of Spark's own pages, where they are served
    last_error: str | None = None
    offsets: list[dict[str, Any]] = field(default_factory=list)

    def write(self, state_dir: Place) -> None:
        write_whole(state_dir / PROGRESS_FILE, json.dumps(asdict(self)))


class ProgressError(ValueError):
    """A file that should hold the progress of a pipeline does not."""


def read_progress(state_dir: Place) -> Progress | None:
    """The last word of a pipeline, corrected if its process is gone without one."""
    path = state_dir / PROGRESS_FILE
    try:
        progress = msgspec.json.decode(path.read_bytes(), type=Progress)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ProgressError(f"{path} is not a progress file: {error}") from None
    # A process that is on another machine cannot be asked for; it reports every few seconds.
    is_on_s3 = isinstance(state_dir, S3Path)
    is_there = _is_recent(progress) if is_on_s3 else _is_alive(progress.pid)
    if progress.state in (STARTING, RUNNING, RETRYING) and not is_there:
        progress.state = DEAD
    return progress


def _is_recent(progress: Progress) -> bool:
    return time.time() - progress.updated_at < _SILENCE_SECS_MAX


def continued(pipeline: str, state_dir: Place, now: float) -> Progress:
    """The progress of a new process: how long it has been behind or failing is not forgotten."""
    begun = Progress(pipeline, os.getpid(), started_at=now, updated_at=now)
    with suppress(ProgressError):
        before = read_progress(state_dir)
        if before is not None:
            begun.caught_up_at = min(before.caught_up_at, now)
            begun.failures_in_row = before.failures_in_row
            begun.last_error = before.last_error
    if begun.failures_in_row:
        begun.state = RETRYING
    else:
        begun.last_error = None
    return begun


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


class Meter:
    """Turns what Spark reports into progress."""

    def __init__(self, progress: Progress, now: float) -> None:
        self.progress = progress
        progress.caught_up_at = progress.caught_up_at or now
        self._counted = -1

    def saw(self, report: dict[str, Any], at: float) -> None:
        """One report of Spark's; `at` is when its batch had ended."""
        batch, rows = int(report["batchId"]), int(report["numInputRows"])
        # A report without rows bears the number of the batch that is to come.
        if rows == 0 or batch <= self._counted:
            return
        self._counted = batch
        now = self.progress
        now.batch = batch
        now.rows += rows
        now.rows_per_sec = round(float(report.get("processedRowsPerSecond") or 0.0), 1)
        steps = dict(report.get("durationMs", {}))
        now.batch_secs = steps.pop("triggerExecution", 0) / 1000
        now.batch_steps_ms = steps
        totals = now.steps_total_ms
        # Another dictionary each time: a scrape may be reading the last one.
        now.steps_total_ms = totals | {name: totals.get(name, 0) + ms for name, ms in steps.items()}
        now.batches += 1
        now.last_batch_at = at
        sources = report.get("sources", [])
        now.offsets = [
            {"source": s.get("description", ""), "end": _document(s.get("endOffset"))}
            for s in sources
        ]
        now.lag_rows = _rows_behind(sources)
        now.lag_bytes = _bytes_behind(sources)
        if all(_is_at_end(source) for source in sources):
            now.caught_up_at = max(now.caught_up_at, at - now.batch_secs)

    def idle(self, at: float) -> None:
        """There was nothing to do at this moment."""
        self.progress.caught_up_at = at
        if self.progress.lag_rows is not None:
            self.progress.lag_rows = 0
        if self.progress.lag_bytes is not None:
            self.progress.lag_bytes = 0

    def tick(self, at: float) -> None:
        self.progress.updated_at = at
        lag = at - self.progress.caught_up_at
        self.progress.lag_secs = round(lag, 3) if lag > 0.001 else 0.0


def _is_at_end(source: dict[str, Any]) -> bool:
    """Of Postgres this is not known: its log ends behind what the tables' changes end at."""
    end, latest = _places(source)
    return latest is None or "lsn" in latest or latest == end


def _rows_behind(sources: list[dict[str, Any]]) -> int | None:
    """Offsets of streams begin with a count of messages; other sources cannot tell."""
    behind = 0
    for source in sources:
        end, latest = _places(source)
        if latest is None or "lsn" in latest:
            return None
        behind += sum(_numbers(latest[s])[0] - _numbers((end or {}).get(s))[0] for s in latest)
    return max(0, behind)


def _bytes_behind(sources: list[dict[str, Any]]) -> int | None:
    """Bytes of messages, or of Postgres's log, including changes that are not followed."""
    behind = 0
    for source in sources:
        end, latest = _places(source)
        if latest is None:
            return None
        if "lsn" in latest:
            behind += max(0, _lsn(latest["lsn"]) - _lsn((end or {}).get("lsn")))
            continue
        behind += sum(_numbers(latest[s])[1] - _numbers((end or {}).get(s))[1] for s in latest)
    return max(0, behind)


def _places(source: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Where a source's batch ended, and where the source did; None where it cannot say."""
    found = (_document(source.get(name)) for name in ("endOffset", "latestOffset"))
    end, latest = (each.get("at", each) if isinstance(each, dict) else None for each in found)
    return end, latest


def _numbers(token: Any) -> tuple[int, int]:
    """Messages and bytes before the offset of a stream."""
    messages, _, size = str(token).partition("_")
    is_token = messages.isdigit() and size.isdigit()
    return (int(messages), int(size)) if is_token else (0, 0)


def _lsn(text: Any) -> int:
    high, _, low = str(text or "0/0").partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def _document(offset: Any) -> Any:
    return json.loads(offset) if isinstance(offset, str) else offset
