"""A Delta table with keys: MERGE by delta-rs, whose one commit carries query and batch.

The key columns are marked in the table's schema. Of a batch there are two application transactions:
its query's, by which a repeated batch is found, and its writer's, which tells another checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.applied_lake.keyed_tables import BatchId, Conflict, Key, Replacement
from headrace.spark.lake.parquet_files import LakeError, no_place
from headrace.spark.lake.table_checks import check_delta_place
from headrace.spark.lake.table_history import TableMark, lost_of_delta, mark_of_delta

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalake import CommitProperties, DeltaTable
    from pyarrow import dataset as ds

_KEY: Final = "headrace.key"  # of a column: its place in the key
_WRITER: Final = "headrace.writer."
_IS_GONE: Final = "headrace_gone"
# Types whose bounds in the log are exact, or wider: those of times are cut to milliseconds.
_BOUNDED: Final = (pa.types.is_integer, pa.types.is_string, pa.types.is_date)


@dataclass(frozen=True)
class KeyedDelta:
    place: Path

    def open(self) -> DeltaVersion | None:
        from deltalake import DeltaTable

        check_delta_place(self.place)
        path = str(self.place)
        return DeltaVersion(DeltaTable(path)) if DeltaTable.is_deltatable(path) else None

    def create(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        from deltalake import DeltaTable

        check_delta_place(self.place)
        marked = [
            field.with_metadata({_KEY: str(keys.index(field.name))})
            if field.name in keys
            else field
            for field in schema
        ]
        with _named_errors(self.place):
            DeltaTable.create(str(self.place), pa.schema(marked), mode="ignore")

    def add_columns(self, columns: pa.Schema) -> None:
        from deltalake import DeltaTable, Schema

        with _named_errors(self.place):
            table = DeltaTable(str(self.place))
            has = set(pa.schema(table.schema().to_arrow()).names)
            new = [field for field in columns if field.name not in has]
            if new:
                table.alter.add_columns(Schema.from_arrow(pa.schema(new)).fields)

    def merge_files(self) -> None:
        """Vacuum keeps what was removed within a week, unless the table says otherwise."""
        from deltalake import DeltaTable

        with _named_errors(self.place):
            table = DeltaTable(str(self.place))
            table.optimize.compact()
            table.vacuum(dry_run=False)


class DeltaVersion:
    def __init__(self, table: DeltaTable) -> None:
        self._table = table
        self._place = Path(table.table_uri.removeprefix("file://"))
        self.schema = pa.schema(table.schema().to_arrow())
        marked = [field for field in self.schema if (field.metadata or {}).get(_KEY.encode())]
        marked.sort(key=lambda field: int(field.metadata[_KEY.encode()]))
        self.keys = tuple(field.name for field in marked)

    def last_batch(self, query: str) -> int:
        last = self._table.transaction_version(query)
        return -1 if last is None else last

    def knows(self, writer: str) -> bool:
        return self._table.transaction_version(_WRITER + writer) is not None

    def mark(self, batch: int) -> TableMark:
        return mark_of_delta(self._table, batch)

    def lost(self, mark: TableMark, query: str) -> str | None:
        return lost_of_delta(self._table, mark, self.last_batch(query))

    def rows_of(self, keys: Sequence[str], wanted: Collection[Key]) -> list[dict[str, Any]]:
        if not wanted:
            return []
        held = set(wanted)
        found: list[dict[str, Any]] = []
        for rows in self._files(keys[0], {each[0] for each in wanted}):
            near = rows
            for number, key in enumerate(keys):
                values = pa.array({each[number] for each in wanted}, self.schema.field(key).type)
                near = near.filter(pc.is_in(near[key], value_set=values))
            found += [row for row in near.to_pylist() if tuple(row[key] for key in keys) in held]
        return found

    def rows_where(self, column: str) -> list[dict[str, Any]]:
        return [row for rows in self._files() for row in rows.filter(rows[column]).to_pylist()]

    def _files(self, key: str = "", values: Collection[Any] = ()) -> Iterator[pa.Table]:
        """The rows of each file, except of those whose bounds say that they have none of `values`.

        Not by a filter of Arrow's: MERGE writes texts as views, with which its filters fail.
        """
        with _named_errors(self._place):
            skipped = self._beyond(key, values)
            files: ds.Dataset = self._table.to_pyarrow_dataset()
            for fragment in files.get_fragments():
                if fragment.path not in skipped:
                    yield fragment.to_table(schema=files.schema)

    def _beyond(self, key: str, values: Collection[Any]) -> set[str]:
        """The files without any of the values, as far as the log says."""
        if not key or not any(is_kind(self.schema.field(key).type) for is_kind in _BOUNDED):
            return set()
        log = pa.table(self._table.get_add_actions(flatten=True))
        bounds = (f"min.{key}", f"max.{key}")
        if not set(bounds) <= set(log.column_names):
            return set()
        least, greatest = min(values), max(values)
        rows = zip(*(log[name].to_pylist() for name in ("path", *bounds)), strict=True)
        return {
            path
            for path, low, high in rows
            if low is not None and high is not None and (greatest < low or high < least)
        }

    def replace(self, batch: BatchId, change: Replacement) -> None:
        from deltalake import write_deltalake

        with _named_errors(self._place):
            if change.everything:
                write_deltalake(
                    self._table, change.rows, mode="overwrite", commit_properties=_stamp(batch)
                )
            else:
                self._merge(batch, change)

    def _merge(self, batch: BatchId, change: Replacement) -> None:
        source = pa.concat_tables(
            [_flagged(change.rows, is_gone=False), _flagged(change.gone, is_gone=True)],
            promote_options="default",
        )
        stays = f"not s.{_IS_GONE}"
        values = {_name(name): f"s.{_name(name)}" for name in change.rows.column_names}
        (
            self._table.merge(
                source,
                " and ".join(f"t.{_name(key)} = s.{_name(key)}" for key in change.on),
                source_alias="s",
                target_alias="t",
                streamed_exec=False,  # so that files are skipped by the bounds of the keys
                commit_properties=_stamp(batch),
            )
            .when_matched_delete(f"s.{_IS_GONE}")
            .when_matched_update(values, stays)
            .when_not_matched_insert(values, stays)
            .execute()
        )


def _flagged(rows: pa.Table, *, is_gone: bool) -> pa.Table:
    return rows.append_column(_IS_GONE, pa.repeat(pa.scalar(is_gone), rows.num_rows))


def _stamp(batch: BatchId) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        app_transactions=[
            Transaction(batch.query, batch.number),
            Transaction(_WRITER + batch.writer, batch.number),
        ],
        # Not on top of another commit: what is written was computed without it.
        max_commit_retries=0,
    )


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


@contextmanager
def _named_errors(place: Path) -> Iterator[None]:
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except CommitFailedError as error:
        raise Conflict(str(error)) from error
    except OSError as error:
        raise LakeError(no_place(place, error)) from error
    except DeltaError as error:
        raise LakeError(f"{place} does not take the batch: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
