"""What the driver saw committed to Postgres, in a file next to the checkpoint's own.

A Postgres that comes back without its last commits has a ledger to match: only the driver knows
that there was more. Two batches are kept, because the last one may come again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.postgres.ledger import Committed
from headrace.spark.local_paths import PlaceError, local_path

FILE: Final = "ledger.json"
_BATCHES_KEPT: Final = 2


@dataclass(frozen=True)
class CommitNote:
    path: Path
    writer: str

    @classmethod
    def beside(cls, checkpoint: str, writer: str) -> CommitNote | None:
        """Of a query with its checkpoint on this machine; elsewhere nothing is noted."""
        try:
            return cls(local_path("checkpointLocation", checkpoint) / FILE, writer)
        except PlaceError:
            return None

    def read(self) -> Committed:
        """Nothing of another writer's: its ledger is another."""
        return Committed(str(self.path.absolute()), tuple(self._batches()))

    def add(self, batch: int, partitions: Iterable[int]) -> None:
        kept = [each for each in self._batches() if each[0] < batch]
        latest = [*kept, (batch, tuple(sorted(partitions)))][-_BATCHES_KEPT:]
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"writer": self.writer, "batches": latest}), "utf-8")
        new.replace(self.path)

    def _batches(self) -> list[tuple[int, tuple[int, ...]]]:
        try:
            noted = json.loads(self.path.read_text("utf-8"))
        except (FileNotFoundError, ValueError):  # a power cut may leave it empty
            return []
        if noted["writer"] != self.writer:
            return []
        return sorted((batch, tuple(partitions)) for batch, partitions in noted["batches"])
