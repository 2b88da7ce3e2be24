"""The commit of a batch to a table, Delta or Iceberg, which a repeat does not repeat.

Each commit carries (query, batch): in Delta as an application transaction, in Iceberg as a
property of the table. A batch that is found there has been committed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from headrace.spark.lake.files import LakeError, LakeFile

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table


class LakeTable(Protocol):
    """A table that takes files, one commit per batch."""

    @property
    def partition_by(self) -> tuple[str, ...]: ...

    @property
    def keeps_partition_columns(self) -> bool: ...

    @property
    def data_dir(self) -> Path: ...

    def commit(self, schema: pa.Schema, query: str, batch: int, files: Sequence[LakeFile]) -> bool:
        """Add the files; False if this batch of this query is in already."""

    def has(self, query: str, batch: int) -> bool:
        """Whether this batch of this query is in."""


@dataclass(frozen=True)
class DeltaLake:
    path: Path
    partition_by: tuple[str, ...]
    keeps_partition_columns = False

    @property
    def data_dir(self) -> Path:
        return self.path

    def commit(self, schema: pa.Schema, query: str, batch: int, files: Sequence[LakeFile]) -> bool:
        from deltalake import CommitProperties, DeltaTable, Transaction
        from deltalake.transaction import AddAction

        table = DeltaTable.create(
            str(self.path), schema, mode="ignore", partition_by=list(self.partition_by)
        )
        if table.metadata().partition_columns != list(self.partition_by):
            raise LakeError(
                f"{self.path} is partitioned by {table.metadata().partition_columns}, not by "
                f"{list(self.partition_by)}. Use the same partitions, or another table."
            )
        if _is_in_delta(table, query, batch):
            return False
        now_ms = int(time.time() * 1000)
        actions: list[Any] = [
            AddAction(
                file.name,
                file.size_bytes,
                dict(zip(self.partition_by, map(_text, file.partition), strict=True)),
                now_ms,
                True,
                json.dumps({"numRecords": file.rows}),
            )
            for file in files
        ]
        if actions:
            mark = CommitProperties(app_transactions=[Transaction(query, batch)])
            table.create_write_transaction(
                actions, "append", schema, list(self.partition_by), commit_properties=mark
            )
        return True

    def has(self, query: str, batch: int) -> bool:
        from deltalake import DeltaTable

        path = str(self.path)
        return DeltaTable.is_deltatable(path) and _is_in_delta(DeltaTable(path), query, batch)


def _is_in_delta(table: DeltaTable, query: str, batch: int) -> bool:
    done = table.transaction_version(query)
    return done is not None and done >= batch


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
        return cls(path, partition_by, path / "catalog.db", f"headrace.{path.name}")

    @property
    def data_dir(self) -> Path:
        return self.path / "data"

    def commit(self, schema: pa.Schema, query: str, batch: int, files: Sequence[LakeFile]) -> bool:
        catalog = self.catalog()
        try:
            return self._commit(catalog, schema, query, batch, files)
        finally:
            catalog.engine.dispose()

    def catalog(self) -> SqlCatalog:
        from pyiceberg.catalog.sql import SqlCatalog

        self.catalog_file.parent.mkdir(parents=True, exist_ok=True)
        place = self.path.resolve().as_uri()
        return SqlCatalog("headrace", uri=f"sqlite:///{self.catalog_file}", warehouse=place)

    def _commit(
        self,
        catalog: SqlCatalog,
        schema: pa.Schema,
        query: str,
        batch: int,
        files: Sequence[LakeFile],
    ) -> bool:
        table = self._table(catalog, schema)
        if _is_in_iceberg(table, query, batch):
            return False
        paths = [(self.data_dir.resolve() / file.name).as_uri() for file in files]
        if paths:
            with table.transaction() as change:
                change.add_files(paths, check_duplicate_files=False)
                change.set_properties({_mark(query): str(batch)})
        return True

    def has(self, query: str, batch: int) -> bool:
        catalog = self.catalog()
        try:
            return catalog.table_exists(self.name) and _is_in_iceberg(
                catalog.load_table(self.name), query, batch
            )
        finally:
            catalog.engine.dispose()

    def _table(self, catalog: SqlCatalog, schema: pa.Schema) -> Table:
        namespace = self.name.rpartition(".")[0]
        catalog.create_namespace_if_not_exists(namespace)
        if catalog.table_exists(self.name):
            return catalog.load_table(self.name)
        location = self.path.resolve().as_uri()
        creation = catalog.create_table_transaction(self.name, schema, location=location)
        with creation as new, new.update_spec() as spec:
            for column in self.partition_by:
                spec.add_identity(column)
        return catalog.load_table(self.name)


def _mark(query: str) -> str:
    return f"headrace.batch.{query}"


def _is_in_iceberg(table: Table, query: str, batch: int) -> bool:
    return int(table.properties.get(_mark(query), -1)) >= batch


def _text(value: Any) -> str | None:
    """A partition value as Delta's log writes it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    return value.isoformat() if isinstance(value, date) else str(value)
