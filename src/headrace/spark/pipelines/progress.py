"""How a pipeline is doing, in a file that anyone may read while it runs.

Written whole and renamed, so that a reader never meets half of it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

PROGRESS_FILE = "progress.json"
STARTING, RUNNING, STOPPED, FAILED, DEAD = "starting", "running", "stopped", "failed", "dead"


@dataclass
class Progress:
    """`lag_secs` is the age of the oldest record that may not be through yet, 0 when idle.

    `lag_rows` counts messages behind where the source can count them, else None. Times are
    seconds since 1970.
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
    last_error: str | None = None
    offsets: list[dict[str, Any]] = field(default_factory=list)

    def write(self, state_dir: Path) -> None:
        path = state_dir / PROGRESS_FILE
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)), "utf-8")
        new.replace(path)


class ProgressError(ValueError):
    """A file that should hold the progress of a pipeline does not."""


def read_progress(state_dir: Path) -> Progress | None:
    """The last word of a pipeline, corrected if its process is gone without one."""
    path = state_dir / PROGRESS_FILE
    try:
        progress = msgspec.json.decode(path.read_bytes(), type=Progress)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ProgressError(f"{path} is not a progress file: {error}") from None
    if progress.state in (STARTING, RUNNING) and not _is_alive(progress.pid):
        progress.state = DEAD
    return progress


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
        self._caught_up_at = now
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
        sources = report.get("sources", [])
        now.offsets = [
            {"source": s.get("description", ""), "end": _document(s.get("endOffset"))}
            for s in sources
        ]
        now.lag_rows = _rows_behind(sources)
        if all(_is_at_end(source) for source in sources):
            self._caught_up_at = max(self._caught_up_at, at - now.batch_secs)

    def idle(self, at: float) -> None:
        """There was nothing to do at this moment."""
        self._caught_up_at = at
        if self.progress.lag_rows is not None:
            self.progress.lag_rows = 0

    def tick(self, at: float) -> None:
        self.progress.updated_at = at
        lag = at - self._caught_up_at
        self.progress.lag_secs = round(lag, 3) if lag > 0.001 else 0.0


def _is_at_end(source: dict[str, Any]) -> bool:
    latest = _document(source.get("latestOffset"))
    return latest is None or _places(latest) == _places(_document(source.get("endOffset")))


def _rows_behind(sources: list[dict[str, Any]]) -> int | None:
    """Offsets of streams begin with a count of messages; other sources cannot tell."""
    behind = 0
    for source in sources:
        end = _places(_document(source.get("endOffset")))
        latest = _places(_document(source.get("latestOffset")))
        if not isinstance(end, dict) or not isinstance(latest, dict):
            return None
        behind += sum(_count(latest[s]) - _count(end.get(s)) for s in latest)
    return max(0, behind)


def _places(offset: Any) -> Any:
    return offset.get("at", offset) if isinstance(offset, dict) else offset


def _count(token: Any) -> int:
    head = str(token).partition("_")[0]
    return int(head) if head.isdigit() else 0


def _document(offset: Any) -> Any:
    return json.loads(offset) if isinstance(offset, str) else offset
