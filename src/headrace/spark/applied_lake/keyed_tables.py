"""A lake table whose rows have keys, whatever its format: read by key, replaced in one commit.

A commit counts only for the version that it was computed from. If anybody commits in between, it
is a `Conflict`, and everything is computed again from the newer version.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import pyarrow as pa

from headrace.changes.events import NotAChange
from headrace.changes.rules import qualified
from headrace.spark.lake.parquet_files import LakeError
from headrace.spark.lake.table_history import TableMark

LakeFormat = Literal["delta", "iceberg"]
Key = tuple[Any, ...]

OURS: Final = "_headrace"  # the directory of a lake that holds no tables
_NAME_BYTES_MAX: Final = 255


class Conflict(Exception):
    """Somebody else committed to the table meanwhile; nothing of this commit is in."""


@dataclass(frozen=True)
class BatchId:
    """A batch as tables know it: its writer, its query, its number."""

    writer: str
    query: str
    number: int


class Version(Protocol):
    """A table as it was when it was opened."""

    schema: pa.Schema
    keys: tuple[str, ...]  # empty if the table does not name them

    def last_batch(self, query: str) -> int:
        """The last batch of this query that is in; -1 if there is none."""
        ...

    def knows(self, writer: str) -> bool:
        """Whether any query of this writer has committed to it."""
        ...

    def rows_of(self, keys: Sequence[str], wanted: Collection[Key]) -> list[dict[str, Any]]:
        """The rows with these values in the columns `keys`."""
        ...

    def rows_where(self, column: str) -> list[dict[str, Any]]:
        """The rows in which a boolean column is true."""
        ...

    def mark(self, batch: int) -> TableMark: ...

    def lost(self, mark: TableMark, query: str) -> str | None:
        """What became of the table if it no longer has what was in it at `mark`."""
        ...

    def replace(self, batch: BatchId, change: Replacement) -> None:
        """One commit, with the number of the batch in it. Raises Conflict."""
        ...


@dataclass(frozen=True)
class Replacement:
    """Rows that take the place of those with the same values in the columns `on`, or are added;
    and values of `on` whose rows go. `everything`: all other rows go, too."""

    on: tuple[str, ...]
    rows: pa.Table
    gone: pa.Table
    everything: bool = False


class KeyedTable(Protocol):
    @property
    def place(self) -> Path: ...

    def open(self) -> Version | None:
        """The newest version; None if there is no table."""
        ...

    def create(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        """Make it, unless it is there."""
        ...

    def add_columns(self, columns: pa.Schema) -> None: ...

    def merge_files(self) -> None:
        """Make fewer files of the small ones, and remove what no version of the last week needs.
        Raises Conflict."""


@dataclass(frozen=True)
class Lake:
    """A directory of tables: `schema/name`. Those of Iceberg share a catalog in it."""

    root: Path
    format: LakeFormat

    def make_ready(self) -> None:
        """On the driver, before tasks open tables at the same time."""
        if self.format == "iceberg":
            from headrace.spark.applied_lake.iceberg_table import make_catalog

            make_catalog(self.root)

    def table(self, name: str) -> KeyedTable:
        """NotAChange if a message names a table that cannot be a directory."""
        schema, _, table = qualified(name).partition(".")
        for part in (schema, table):
            if not _is_directory_name(part):
                raise NotAChange(f"the table name {name!r} cannot be the name of a directory")
        if self.format == "delta":
            from headrace.spark.applied_lake.delta_table import KeyedDelta

            return KeyedDelta(self.root / schema / table)
        from headrace.spark.applied_lake.iceberg_table import KeyedIceberg

        return KeyedIceberg(self.root / schema / table, self.root, (schema, table))


def _is_directory_name(name: str) -> bool:
    """Names come from messages: none may lead out of the lake, or into what is ours."""
    is_plain = name not in ("", ".", "..", OURS) and not set("/\0") & set(name)
    return is_plain and len(name.encode(errors="replace")) <= _NAME_BYTES_MAX


def keys_of_text(place: Path, text: str | None) -> tuple[str, ...]:
    """The key columns as a table keeps them."""
    try:
        return tuple(json.loads(text)) if text else ()
    except ValueError:
        raise LakeError(f"{place} does not say which columns are its key: {text!r}.") from None
