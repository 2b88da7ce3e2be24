"""Small files of tables merged, and files that no kept version needs removed, between batches.

Every batch writes new files and leaves those that they replace to readers of older versions. The
driver looks after both when no task writes. Somebody else's commit wins: the next time will do.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.spark.applied_lake.batch_notes import BatchNotes
from headrace.spark.applied_lake.keyed_tables import Conflict, Lake


@dataclass
class MergingOfFiles:
    """At most every so many seconds, and after the first batch of a run; 0 is never."""

    every_secs: int
    _last: float = field(default=float("-inf"))

    def after_batch(self, lake: Lake, checkpoint: Path) -> None:
        now = time.monotonic()
        if not self.every_secs or now - self._last < self.every_secs:
            return
        self._last = now
        for name in BatchNotes(checkpoint).latest().marks:
            with suppress(Conflict):
                lake.table(name).merge_files()
