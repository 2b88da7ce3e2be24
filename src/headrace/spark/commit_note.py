"""What the driver saw committed to Postgres: its last batches, each with its partitions.

Two batches are kept, because the last one may come again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from headrace.postgres.ledger import Committed
from headrace.spark.driver_notes import DriverNote

FILE: Final = "ledger.json"
_BATCHES_KEPT: Final = 2


@dataclass(frozen=True)
class CommitNote:
    note: DriverNote
    writer: str

    def read(self) -> Committed:
        """Nothing of another writer's: its ledger is another."""
        return Committed(str(self.note.path.absolute()), tuple(self._batches()))

    def add(self, batch: int, partitions: Iterable[int]) -> None:
        kept = [each for each in self._batches() if each[0] < batch]
        latest = [*kept, (batch, tuple(sorted(partitions)))][-_BATCHES_KEPT:]
        self.note.write({"writer": self.writer, "batches": latest})

    def _batches(self) -> list[tuple[int, tuple[int, ...]]]:
        noted: dict[str, Any] | None = self.note.read()
        if noted is None or noted["writer"] != self.writer:
            return []
        return sorted((batch, tuple(partitions)) for batch, partitions in noted["batches"])
