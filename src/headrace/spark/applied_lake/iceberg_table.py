"""An Iceberg table with keys: files that hold replaced rows are written again without them.

All of a batch is one commit, which also sets a property with query and batch. It is always an
overwrite, also where rows are only added: pyiceberg repeats a commit that met another one, and of
an overwrite it first looks whether files were added meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.applied_lake.iceberg_files import merge_small, remove_old, whole_file
from headrace.spark.applied_lake.keyed_tables import (
    BatchId,
    Conflict,
    Key,
    Replacement,
    keys_of_text,
)
from headrace.spark.lake.parquet_files import LakeError, no_place
from headrace.spark.lake.table_checks import check_iceberg_place
from headrace.spark.lake.table_commits import location
from headrace.spark.lake.table_history import TableMark, lost_of_iceberg, mark_of_iceberg

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table, Transaction

_KEYS: Final = "headrace.keys"
_BATCH: Final = "headrace.batch."
_WRITER: Final = "headrace.writer."
_LISTED_MAX: Final = 200  # of values in a filter; more are searched by their bounds
_LOCK_WAIT_SECS: Final = 60  # for another task's commit to the catalog's file
_SETTINGS: Final = {
    # Each commit writes the whole metadata anew; those before it are of no use for long.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


def make_catalog(root: Path) -> None:
    with _catalog(root):
        pass


@contextmanager
def _catalog(root: Path) -> Iterator[SqlCatalog]:
    from pyiceberg.catalog.sql import SqlCatalog

    root.mkdir(parents=True, exist_ok=True)
    database = f"sqlite:///{quote(str(root / 'catalog.db'))}?timeout={_LOCK_WAIT_SECS}"
    catalog = SqlCatalog("headrace", uri=database, warehouse=location(root))
    try:
        yield catalog
    finally:
        catalog.engine.dispose()


@dataclass(frozen=True)
class KeyedIceberg:
    place: Path
    root: Path
    name: tuple[str, str]

    def open(self) -> IcebergVersion | None:
        check_iceberg_place(self.place)
        with self._loaded() as table:
            return None if table is None else IcebergVersion(self, table)

    @contextmanager
    def _loaded(self) -> Iterator[Table | None]:
        with _catalog(self.root) as catalog:
            exists = catalog.table_exists(self.name)
            yield catalog.load_table(self.name) if exists else None

    def create(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        check_iceberg_place(self.place)
        settings = {_KEYS: json.dumps(list(keys)), **_SETTINGS}
        with _named_errors(self.place), _catalog(self.root) as catalog:
            catalog.create_namespace_if_not_exists(self.name[:1])
            try:
                catalog.create_table(
                    self.name, schema, location=location(self.place), properties=settings
                )
            except TableAlreadyExistsError:
                return

    def add_columns(self, columns: pa.Schema) -> None:
        with _named_errors(self.place), self._loaded() as table:
            assert table is not None, "it was there"
            has = set(table.schema().column_names)
            new = pa.schema([field for field in columns if field.name not in has])
            if new.names:
                with table.update_schema() as update:
                    update.union_by_name(new)

    def merge_files(self) -> None:
        with _named_errors(self.place), self._loaded() as table:
            if table is not None:
                merge_small(table)
                remove_old(table, self.place)


class IcebergVersion:
    def __init__(self, of: KeyedIceberg, table: Table) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        self._of = of
        self._table = table
        self.schema: pa.Schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
        kept = keys_of_text(of.place, table.properties.get(_KEYS))
        self.keys = kept or tuple(table.schema().identifier_field_names())

    def last_batch(self, query: str) -> int:
        return int(self._table.properties.get(_BATCH + query, -1))

    def knows(self, writer: str) -> bool:
        return _WRITER + writer in self._table.properties

    def mark(self, batch: int) -> TableMark:
        return mark_of_iceberg(self._table, batch)

    def lost(self, mark: TableMark, query: str) -> str | None:
        return lost_of_iceberg(self._table, mark, self.last_batch(query))

    def rows_of(self, keys: Sequence[str], wanted: Collection[Key]) -> list[dict[str, Any]]:
        if not wanted:
            return []
        held = set(wanted)
        rows = self._read(_near(keys[0], {each[0] for each in wanted}))
        for number, key in enumerate(keys):
            values = pa.array({each[number] for each in wanted}, self.schema.field(key).type)
            rows = rows.filter(pc.is_in(rows[key], value_set=values))
        return [row for row in rows.to_pylist() if tuple(row[key] for key in keys) in held]

    def rows_where(self, column: str) -> list[dict[str, Any]]:
        from pyiceberg.expressions import EqualTo

        wanted = EqualTo(column, True)  # type: ignore[arg-type,call-arg]  # as its docs call it
        found: list[dict[str, Any]] = self._read(wanted).to_pylist()
        return found

    def _read(self, wanted: BooleanExpression) -> pa.Table:
        return self._table.scan(wanted).to_arrow().cast(self.schema)

    def replace(self, batch: BatchId, change: Replacement) -> None:
        with _named_errors(self._of.place), _catalog(self._of.root) as catalog:
            table = self._table
            table.catalog = catalog
            written: list[DataFile] = []
            try:
                with table.transaction() as commit:
                    self._swap(commit, change, written)
                    mine = {_BATCH + batch.query: str(batch.number), _WRITER + batch.writer: "1"}
                    commit.set_properties(mine)
            except BaseException:
                for file in written:
                    table.io.delete(file.file_path)
                raise

    def _swap(self, commit: Transaction, change: Replacement, written: list[DataFile]) -> None:
        removed = []
        for task in self._touched(change):
            rows = whole_file(self._table, task)
            left = None if change.everything else _without(rows, change)
            if left is None or left.num_rows < rows.num_rows:
                removed.append(task.file)
                written += self._write(commit, left)
        written += self._write(commit, change.rows)
        with commit.update_snapshot().overwrite() as swap:
            for file in removed:
                swap.delete_data_file(file)
            for file in written:
                swap.append_data_file(file)

    def _touched(self, change: Replacement) -> Iterator[FileScanTask]:
        """Files that may hold rows to replace."""
        if change.everything:
            yield from self._table.scan().plan_files()
            return
        first = change.on[0]
        values = [*change.rows[first].to_pylist(), *change.gone[first].to_pylist()]
        if values:
            yield from self._table.scan(_near(first, set(values))).plan_files()

    def _write(self, commit: Transaction, rows: pa.Table | None) -> list[DataFile]:
        if rows is None or not rows.num_rows:
            return []
        # What `append` of a transaction calls, which always adds and never overwrites.
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        return list(_dataframe_to_data_files(commit.table_metadata, rows, self._table.io))


def _near(column: str, values: set[Any]) -> BooleanExpression:
    """A filter that holds for these values, and perhaps for others: it must stay short."""
    from pyiceberg.expressions import And, GreaterThanOrEqual, In, LessThanOrEqual

    if len(values) <= _LISTED_MAX:
        return In(column, values)  # type: ignore[arg-type,call-arg]
    bounds = (
        GreaterThanOrEqual(column, min(values)),  # type: ignore[arg-type,call-arg]
        LessThanOrEqual(column, max(values)),  # type: ignore[arg-type,call-arg]
    )
    return reduce(And, bounds)  # type: ignore[arg-type]


def _without(rows: pa.Table, change: Replacement) -> pa.Table:
    """The rows that stay: those with other values in `on`."""
    on = list(change.on)
    kinds = pa.schema([rows.schema.field(name) for name in on])
    keys = pa.concat_tables([part.select(on).cast(kinds) for part in (change.rows, change.gone)])
    numbered = rows.select(on).append_column("headrace_row", pa.array(range(rows.num_rows)))
    stay = numbered.join(keys, on, join_type="left anti")["headrace_row"]
    return rows.take(stay.combine_chunks().sort())


@contextmanager
def _named_errors(place: Path) -> Iterator[None]:
    from pyiceberg.exceptions import CommitFailedException, ValidationException
    from sqlalchemy.exc import OperationalError

    try:
        yield
    except (CommitFailedException, ValidationException, OperationalError) as error:
        raise Conflict(" ".join(str(error).split())) from error
    except OSError as error:
        raise LakeError(no_place(place, error)) from error
