"""A table that `archive` wrote, as `replay` reads it: one version, its streams, their messages.

Also where its small files are merged. Both formats keep old versions, so what is read does not
change while files are merged under it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from headrace.spark.lake.files import LakeError, remove_files, write_files
from headrace.spark.lake.tables import Iceberg, location, partitions_of
from headrace.spark.places import local_path

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

COLUMNS = ("offset", "content_type", "value")
_SMALL_BYTES_MAX = 64 * 1024 * 1024
_NOT_BY_STREAM = "The table is not partitioned by stream, as archive does it."


class Archive(Protocol):
    """Pickles, so that tasks can read."""

    def version(self) -> int:
        """The one that is now."""
        ...

    def streams(self, version: int) -> list[str]: ...

    def messages(self, stream: str, version: int) -> pa.Table:
        """`COLUMNS` of one stream, in no order."""
        ...

    def merge_files(self) -> None:
        """Make one file of the small ones of each partition."""
        ...


def find_archive(path: str) -> Archive | None:
    """The table at `path`, of whichever format it is."""
    from deltalake import DeltaTable

    place = local_path("table", path).absolute()
    if DeltaTable.is_deltatable(str(place)):
        return DeltaArchive(str(place))
    lake = Iceberg.at(place)
    with lake.opened() as table:
        return IcebergArchive(lake) if table is not None else None


@dataclass(frozen=True)
class DeltaArchive:
    path: str

    def _table(self, version: int | None = None) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self.path, version=version)

    def version(self) -> int:
        return int(self._table().version())

    def streams(self, version: int) -> list[str]:
        table = self._table(version)
        if "stream" not in table.metadata().partition_columns:
            raise LakeError(_NOT_BY_STREAM)
        return sorted({partition["stream"] for partition in table.partitions()})

    def messages(self, stream: str, version: int) -> pa.Table:
        read: pa.Table = self._table(version).to_pyarrow_table(
            partitions=[("stream", "=", stream)], columns=list(COLUMNS)
        )
        return read

    def merge_files(self) -> None:
        """The parts are forgotten a week later."""
        table = self._table()
        table.optimize.compact()
        table.vacuum(dry_run=False)


@dataclass(frozen=True)
class IcebergArchive:
    lake: Iceberg

    @contextmanager
    def _opened(self) -> Iterator[Table]:
        with self.lake.opened() as table:
            if table is None:
                raise LakeError(f"{self.lake.path} is no longer there.")
            yield table

    def version(self) -> int:
        with self._opened() as table:
            snapshot = table.current_snapshot()
            if snapshot is None:
                raise LakeError(f"{self.lake.path} holds nothing yet.")
            return snapshot.snapshot_id

    def streams(self, version: int) -> list[str]:
        with self._opened() as table:
            names = partitions_of(table)
            if "stream" not in names:
                raise LakeError(_NOT_BY_STREAM)
            place = names.index("stream")
            files = table.scan(snapshot_id=version).plan_files()
            return sorted({task.file.partition[place] for task in files})

    def messages(self, stream: str, version: int) -> pa.Table:
        from pyiceberg.expressions import EqualTo

        with self._opened() as table:
            wanted = EqualTo("stream", stream)  # type: ignore[arg-type,call-arg]  # as its docs call it
            scan = table.scan(wanted, selected_fields=COLUMNS, snapshot_id=version)
            read: pa.Table = scan.to_arrow()
            return read

    def merge_files(self) -> None:
        """The parts stay on the disk: pyiceberg removes no files."""
        with self._opened() as table:
            for files in small_files(table):
                self.merge(table, files)

    def merge(self, table: Table, files: list[DataFile]) -> None:
        """One commit that takes these files out and puts their rows in, whoever adds meanwhile."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        directory = self.lake.data_dir
        rows = pa.concat_tables(_rows(table, file) for file in files)
        written = write_files(
            directory, "merged", rows.to_batches(), (), keep_partition_columns=True
        )
        paths = iter([location(directory / file.name) for file in written])
        try:
            with table.transaction() as change, change.update_snapshot().overwrite() as swap:
                for file in files:
                    swap.delete_data_file(file)
                for data_file in parquet_files_to_data_files(table.io, table.metadata, paths):
                    swap.append_data_file(data_file)
        except (CommitFailedException, ValidationException):
            remove_files(directory, written)  # somebody was faster: the next time will do


def small_files(table: Table) -> list[list[DataFile]]:
    """Those of each partition that has several."""
    found: dict[tuple[Any, ...], list[DataFile]] = defaultdict(list)
    count = len(partitions_of(table))
    for task in table.scan().plan_files():
        if task.file.file_size_in_bytes <= _SMALL_BYTES_MAX:
            found[tuple(task.file.partition[n] for n in range(count))].append(task.file)
    return [files for files in found.values() if len(files) > 1]


def _rows(table: Table, file: DataFile) -> pa.Table:
    """What one file holds, as the sink wrote it."""
    import pyarrow.parquet as pq

    with table.io.new_input(file.file_path).open() as source:
        return pq.read_table(source)
