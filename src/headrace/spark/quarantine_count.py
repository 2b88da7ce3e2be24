"""How many records a query has quarantined, in a file next to its checkpoint's own.

Tasks count; the driver adds up when a batch is committed. A batch that is committed again counts
once. A batch without such records, which is nearly every batch, writes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from headrace.spark.local_paths import PlaceError, local_path
from headrace.spark.places import Place, write_whole

FILE: Final = "quarantined.json"


@dataclass(frozen=True)
class QuarantineCount:
    checkpoint: Place

    @classmethod
    def of(cls, checkpoint: str) -> QuarantineCount | None:
        """Of a query with its checkpoint on this machine; elsewhere nothing is counted."""
        try:
            return cls(local_path("checkpointLocation", checkpoint)) if checkpoint else None
        except PlaceError:
            return None

    def add(self, batch: int, records: int) -> None:
        last, total = self._read()
        if not records or batch <= last:
            return
        counted = {"batch": batch, "total": total + records}
        write_whole(self.checkpoint / FILE, json.dumps(counted))

    def total(self) -> int:
        return self._read()[1]

    def _read(self) -> tuple[int, int]:
        """The last batch that counted, and the sum."""
        try:
            found = json.loads((self.checkpoint / FILE).read_text("utf-8"))
        except (FileNotFoundError, ValueError):  # a power cut may leave it empty
            return -1, 0
        return int(found["batch"]), int(found["total"])
