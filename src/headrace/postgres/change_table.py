"""The changes of a batch as Arrow columns, which is how they travel to Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, overload

import pyarrow as pa
import pyarrow.compute as pc

from headrace.postgres.pgoutput import Change

# A list has a field of this name in Spark, which takes no other.
NAMES: Final = pa.list_(pa.field("element", pa.string()))
SCHEMA: Final = pa.schema(
    [
        ("table", pa.string()),
        ("op", pa.string()),
        ("key", pa.string()),
        ("value", pa.string()),
        ("old", pa.string()),
        ("unchanged", NAMES),
        ("lsn", pa.string()),
        ("seq", pa.int32()),
        ("xid", pa.int64()),
        ("committed_at", pa.timestamp("us", "UTC")),
    ]
)


class ChangeTable(Sequence[Change]):
    """Changes in columns. As a sequence it gives them one by one, which is slow."""

    def __init__(self, columns: pa.Table) -> None:
        self.columns = columns

    @classmethod
    def of(cls, changes: Iterable[Change]) -> ChangeTable:
        return cls(pa.Table.from_batches([record_batch(changes)], SCHEMA))

    @property
    def has_truncate(self) -> bool:
        found = pc.any(pc.equal(self.columns["op"], "truncate"))
        return found.as_py() is True  # of no rows it is null

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    @overload
    def __getitem__(self, index: int) -> Change: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Change]: ...

    def __getitem__(self, index: int | slice) -> Change | Sequence[Change]:
        return list(self)[index]

    def __iter__(self) -> Iterator[Change]:
        micros = self.columns["committed_at"].cast(pa.int64())
        at = self.columns.column_names.index("committed_at")
        columns = self.columns.set_column(at, "committed_at", micros).columns
        return map(Change._make, zip(*(each.to_pylist() for each in columns), strict=True))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ChangeTable):
            equal: bool = self.columns.equals(other.columns)
            return equal
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list


def record_batch(changes: Iterable[Change]) -> pa.RecordBatch:
    columns: list[Any] = list(zip(*changes, strict=True)) or [() for _ in SCHEMA]
    arrays = [pa.array(column, each.type) for column, each in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


NO_CHANGES: Final = ChangeTable(SCHEMA.empty_table())
