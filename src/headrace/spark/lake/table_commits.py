"""The commit of a batch to a table, Delta or Iceberg, which a repeat does not repeat.

Each commit carries (query, batch): in Delta as an application transaction, in Iceberg as a
property of the table. A batch that is found there has been committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import pyarrow as pa

from headrace.spark.lake.delta_tables import created, delta_table, is_delta
from headrace.spark.lake.parquet_files import LakeFile, partition_text
from headrace.spark.lake.table_checks import (
    check_columns,
    check_delta_place,
    check_iceberg_place,
    check_partitions,
)
from headrace.spark.lake.table_history import (
    GONE,
    TableMark,
    lost_of_delta,
    lost_of_iceberg,
    mark_of_delta,
    mark_of_iceberg,
)
from headrace.spark.places import Place

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

_INT_BITS_MIN = 32  # of Iceberg, which has no smaller whole number


class LakeTable(Protocol):
    """A table that takes files, one commit per batch."""

    @property
    def partition_by(self) -> tuple[str, ...]: ...

    @property
    def keeps_partition_columns(self) -> bool: ...

    @property
    def data_dir(self) -> Place: ...

    def check(self, schema: pa.Schema) -> None:
        """Refuse rows that the table, if it is there, would not hold as they are."""

    def commit(self, schema: pa.Schema, query: str, batch: int, files: Sequence[LakeFile]) -> bool:
        """Add the files; False if this batch of this query is in already."""

    def has(self, query: str, batch: int) -> bool:
        """Whether this batch of this query is in."""

    def mark(self, batch: int) -> TableMark:
        """The table as it is after `batch` was committed."""

    def lost(self, query: str, mark: TableMark) -> str | None:
        """What became of the table if it no longer has what was in it at `mark`."""


@dataclass(frozen=True)
class DeltaLake:
    path: Place
    partition_by: tuple[str, ...]
    keeps_partition_columns = False

    @property
    def data_dir(self) -> Place:
        return self.path

    def check(self, schema: pa.Schema) -> None:
        check_delta_place(self.path)
        if is_delta(self.path):
            self._check(delta_table(self.path), schema)

    def _check(self, table: DeltaTable, schema: pa.Schema) -> None:
        check_partitions(self.path, table.metadata().partition_columns, self.partition_by)
        check_columns(self.path, pa.schema(table.schema().to_arrow()), schema)

    def commit(self, schema: pa.Schema, query: str, batch: int, files: Sequence[LakeFile]) -> bool:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        table = created(self.path, schema, self.partition_by)
        self._check(table, schema)
        if _is_in_delta(table, query, batch):
            return False
        if not files:
            return True
        mark = CommitProperties(app_transactions=[Transaction(query, batch)])
        partitions = list(self.partition_by)
        actions = self._actions(files)
        try:
            table.create_write_transaction(
                actions, "append", schema, partitions, commit_properties=mark
            )
        except CommitFailedError:
            # If S3's answer is lost, the library asks again, and collides with its own commit.
            if not self._holds(files):
                raise
        return True

    def _actions(self, files: Sequence[LakeFile]) -> list[Any]:
        from deltalake.transaction import AddAction

        now_ms = int(time.time() * 1000)
        return [
            AddAction(
                file.name,
                file.size_bytes,
                dict(zip(self.partition_by, map(partition_text, file.partition), strict=True)),
                now_ms,
                True,
                file.stats,
            )
            for file in files
        ]

    def _holds(self, files: Sequence[LakeFile]) -> bool:
        """Whether the table has these very files; no two are ever called the same."""
        held = {uri.rpartition("/")[2] for uri in delta_table(self.path).file_uris()}
        return held.issuperset(file.name.rpartition("/")[2] for file in files)

    def has(self, query: str, batch: int) -> bool:
        return is_delta(self.path) and _is_in_delta(delta_table(self.path), query, batch)

    def mark(self, batch: int) -> TableMark:
        return mark_of_delta(delta_table(self.path), batch)

    def lost(self, query: str, mark: TableMark) -> str | None:
        if not is_delta(self.path):
            return GONE
        table = delta_table(self.path)
        return lost_of_delta(table, mark, _last_in_delta(table, query))


def _is_in_delta(table: DeltaTable, query: str, batch: int) -> bool:
    return _last_in_delta(table, query) >= batch


def _last_in_delta(table: DeltaTable, query: str) -> int:
    done = table.transaction_version(query)
    return -1 if done is None else done


@dataclass(frozen=True)
class Iceberg:
    path: Path
    partition_by: tuple[str, ...]
    catalog_file: Path
    name: str
    keeps_partition_columns = True

    @classmethod
    def at(cls, path: Path, partition_by: tuple[str, ...] = ()) -> Iceberg:
        """The table of a directory, with its catalog inside and the directory's name."""
        name = path.name.replace(".", "_")  # a dot would be a namespace's end
        return cls(path, partition_by, path / "catalog.db", f"headrace.{name}")

    @property
    def data_dir(self) -> Path:
        return self.path / "data"

    def check(self, schema: pa.Schema) -> None:
        check_iceberg_place(self.path)
        with self.opened() as table:
            if table is not None:
                self._check(table, schema)

    def _check(self, table: Table, schema: pa.Schema) -> None:
        check_partitions(self.path, partitions_of(table), self.partition_by)
        check_columns(self.path, table.schema().as_arrow(), schema, _INT_BITS_MIN)

    def commit(self, schema: pa.Schema, query: str, batch: int, files: Sequence[LakeFile]) -> bool:
        catalog = self.catalog()
        try:
            return self._commit(catalog, schema, query, batch, files)
        finally:
            catalog.engine.dispose()

    @contextmanager
    def opened(self) -> Iterator[Table | None]:
        """The table if it is there; nothing is made if not."""
        if not self.catalog_file.is_file():
            yield None
            return
        catalog = self.catalog()
        try:
            yield catalog.load_table(self.name) if catalog.table_exists(self.name) else None
        finally:
            catalog.engine.dispose()

    def catalog(self) -> SqlCatalog:
        from pyiceberg.catalog.sql import SqlCatalog

        self.catalog_file.parent.mkdir(parents=True, exist_ok=True)
        database = f"sqlite:///{quote(str(self.catalog_file))}"
        return SqlCatalog("headrace", uri=database, warehouse=location(self.path))

    def _commit(
        self,
        catalog: SqlCatalog,
        schema: pa.Schema,
        query: str,
        batch: int,
        files: Sequence[LakeFile],
    ) -> bool:
        table = self._table(catalog, schema)
        self._check(table, schema)
        if _last_in_iceberg(table, query) >= batch:
            return False
        paths = [location(self.data_dir / file.name) for file in files]
        if paths:
            with table.transaction() as change:
                change.add_files(paths, check_duplicate_files=False)
                change.set_properties({_mark(query): str(batch)})
        return True

    def has(self, query: str, batch: int) -> bool:
        with self.opened() as table:
            return table is not None and _last_in_iceberg(table, query) >= batch

    def mark(self, batch: int) -> TableMark:
        with self.opened() as table:
            assert table is not None, "a batch was just committed to it"
            return mark_of_iceberg(table, batch)

    def lost(self, query: str, mark: TableMark) -> str | None:
        with self.opened() as table:
            if table is None:
                return GONE
            return lost_of_iceberg(table, mark, _last_in_iceberg(table, query))

    def _table(self, catalog: SqlCatalog, schema: pa.Schema) -> Table:
        namespace = self.name.rpartition(".")[0]
        catalog.create_namespace_if_not_exists(namespace)
        if catalog.table_exists(self.name):
            return catalog.load_table(self.name)
        place = location(self.path)
        creation = catalog.create_table_transaction(self.name, schema, location=place)
        with creation as new, new.update_spec() as spec:
            for column in self.partition_by:
                spec.add_identity(column)
        return catalog.load_table(self.name)


def location(path: Path) -> str:
    """As Iceberg keeps it: nothing is percent-encoded, and nothing decoded."""
    return f"file://{path.resolve()}"


def partitions_of(table: Table) -> list[str]:
    """The columns, each with what is done to it, if anything is."""
    schema = table.schema()
    named = [(schema.find_column_name(f.source_id) or "", f.transform) for f in table.spec().fields]
    return [name if str(how) == "identity" else f"{how}({name})" for name, how in named]


def _mark(query: str) -> str:
    return f"headrace.batch.{query}"


def _last_in_iceberg(table: Table, query: str) -> int:
    return int(table.properties.get(_mark(query), -1))
