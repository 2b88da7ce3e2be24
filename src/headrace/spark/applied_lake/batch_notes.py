"""What the driver knows after each batch: of every stream what follows from it, of every table its
last commit. Kept in the checkpoint, a file per batch, so that a batch that comes again starts from
what was known before it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import msgspec

from headrace.changes.rules import CannotApply
from headrace.spark.applied_lake.stream_memory import StreamState
from headrace.spark.applied_lake.writer import Applied, Known
from headrace.spark.driver_notes import DriverNote
from headrace.spark.lake.table_history import TableMark

DIRECTORY: Final = "lake-tables"
_KEPT: Final = 2  # the last batch may come again


@dataclass(frozen=True)
class BatchNotes:
    checkpoint: Path

    def before(self, batch: int) -> Known:
        """Known before `batch`; nothing before the first one."""
        earlier = [number for number in self._numbers() if number < batch]
        if not earlier:
            if batch > 0:
                raise CannotApply(
                    f"{self.checkpoint} has no note of the batches before {batch} in {DIRECTORY}: "
                    "it was made with another target, or the notes were removed. Use another "
                    "--state, or: headrace pipeline reset apply-changes."
                )
            return Known({}, {})
        return self._read(max(earlier))

    def latest(self) -> Known:
        numbers = self._numbers()
        return self._read(max(numbers)) if numbers else Known({}, {})

    def add(self, batch: int, before: Known, done: list[Applied]) -> None:
        streams, marks = dict(before.streams), dict(before.marks)
        for each in done:
            streams |= each.streams
            marks |= each.marks
        self._directory.mkdir(parents=True, exist_ok=True)
        self._note(batch).write(
            {
                "streams": msgspec.to_builtins(streams),
                "tables": {name: asdict(mark) for name, mark in marks.items()},
            }
        )
        for number in sorted(self._numbers())[:-_KEPT]:
            self._note(number).path.unlink(missing_ok=True)

    def _read(self, batch: int) -> Known:
        found = self._note(batch).read()
        assert found is not None, "it was just listed"
        return Known(
            msgspec.convert(found["streams"], dict[str, StreamState]),
            {name: TableMark(**mark) for name, mark in found["tables"].items()},
        )

    def _numbers(self) -> list[int]:
        return [int(path.stem) for path in self._directory.glob("*.json") if path.stem.isdigit()]

    def _note(self, batch: int) -> DriverNote:
        return DriverNote(self._directory / f"{batch}.json")

    @property
    def _directory(self) -> Path:
        return self.checkpoint / DIRECTORY
