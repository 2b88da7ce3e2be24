"""A table that `archive` wrote, as `replay` reads it: one version, its streams, their messages.

Also where its small files are merged. Both formats keep old versions, so what is read does not
change while files are merged under it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset as ds

from headrace.spark.lake.delta_tables import delta_table, is_delta
from headrace.spark.lake.parquet_files import ROWS_PER_GROUP, LakeError, remove_files, write_files
from headrace.spark.lake.table_commits import Iceberg, location, partitions_of
from headrace.spark.object_store import S3Path
from headrace.spark.places import place_of

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import DataScan, FileScanTask, Table

COLUMNS: Final = ("offset", "content_type", "value")
_READ_ROWS: Final = 1024  # decoded at a time, whatever of them is wanted
_SMALL_BYTES_MAX: Final = 64 * 1024 * 1024

FilesOfStreams = dict[str, tuple[str, ...]]
"""Each stream with the files that hold messages of it."""


class ArchivedRange(NamedTuple):
    """Of messages by their offsets: behind the first one, up to and with the last."""

    after: str
    until: str


class Archive(Protocol):
    """Pickles, so that tasks can read."""

    def version(self) -> int:
        """The one that is now."""
        ...

    def partition_by(self) -> tuple[str, ...]: ...

    def streams(self, version: int) -> FilesOfStreams: ...

    def offsets(self, stream: str, files: Sequence[str], version: int) -> pa.ChunkedArray:
        """Those of all messages of one stream, in no order."""
        ...

    def messages(
        self, stream: str, files: Sequence[str], version: int, within: ArchivedRange
    ) -> pa.Table:
        """`COLUMNS` of one stream out of `files`, in no order."""
        ...

    def merge_files(self) -> None:
        """Make one file of the small ones of each partition."""
        ...


def find_archive(path: str) -> Archive | None:
    """The table at `path`, of whichever format it is."""
    place = place_of("table", path).absolute()
    if is_delta(place):
        return DeltaArchive(str(place))
    if isinstance(place, S3Path):
        return None
    lake = Iceberg.at(place)
    with lake.opened() as table:
        return IcebergArchive(lake) if table is not None else None


@dataclass(frozen=True)
class DeltaArchive:
    path: str

    def _table(self, version: int | None = None) -> Any:
        return delta_table(self.path, version)

    def version(self) -> int:
        return int(self._table().version())

    def partition_by(self) -> tuple[str, ...]:
        return tuple(self._table().metadata().partition_columns)

    def streams(self, version: int) -> FilesOfStreams:
        rows = _delta_rows(self.path, version)
        _check_archive(rows.schema.names)
        return _by_stream(
            (fragment.path, fragment.to_table(schema=rows.schema, columns=["stream"]))
            for fragment in rows.get_fragments()
        )

    def offsets(self, stream: str, files: Sequence[str], version: int) -> pa.ChunkedArray:
        wanted = pc.field("stream") == stream
        return self._read(files, version, ["offset"], wanted).column("offset")

    def messages(
        self, stream: str, files: Sequence[str], version: int, within: ArchivedRange
    ) -> pa.Table:
        offset = pc.field("offset")
        wanted = (pc.field("stream") == stream) & (offset > within.after)
        return self._read(files, version, list(COLUMNS), wanted & (offset <= within.until))

    def _read(
        self, files: Sequence[str], version: int, columns: list[str], wanted: pc.Expression
    ) -> pa.Table:
        rows = _delta_rows(self.path, version)
        return pa.concat_tables(
            fragment.to_table(
                schema=rows.schema,
                columns=columns,
                filter=wanted,
                batch_size=_READ_ROWS,
                batch_readahead=1,
                fragment_readahead=1,
            )
            for fragment in rows.get_fragments(wanted)
            if fragment.path in files
        )

    def merge_files(self) -> None:
        """The parts are forgotten a week later."""
        from deltalake import WriterProperties

        table = self._table()
        how = WriterProperties(max_row_group_size=ROWS_PER_GROUP, compression="ZSTD")
        table.optimize.compact(writer_properties=how)
        table.vacuum(dry_run=False)


@lru_cache(maxsize=1)
def _delta_rows(path: str, version: int) -> ds.Dataset:
    """A version never changes, and to learn of its files the whole log is read."""
    return delta_table(path, version).to_pyarrow_dataset()


@dataclass(frozen=True)
class IcebergArchive:
    lake: Iceberg

    @contextmanager
    def _opened(self) -> Iterator[Table]:
        with self.lake.opened() as table:
            if table is None:
                raise LakeError(f"{self.lake.path} no longer exists.")
            yield table

    def version(self) -> int:
        with self._opened() as table:
            snapshot = table.current_snapshot()
            if snapshot is None:
                raise LakeError(f"{self.lake.path} holds nothing yet.")
            return snapshot.snapshot_id

    def partition_by(self) -> tuple[str, ...]:
        with self._opened() as table:
            return tuple(partitions_of(table))

    def streams(self, version: int) -> FilesOfStreams:
        with self._opened() as table:
            _check_archive(table.schema().column_names)
            scan = table.scan(selected_fields=("stream",), snapshot_id=version)
            return _by_stream(
                (task.file.file_path, _scanned(table, scan, [task])) for task in scan.plan_files()
            )

    def offsets(self, stream: str, files: Sequence[str], version: int) -> pa.ChunkedArray:
        return self._read(files, version, ("offset",), _is("stream", stream)).column("offset")

    def messages(
        self, stream: str, files: Sequence[str], version: int, within: ArchivedRange
    ) -> pa.Table:
        from pyiceberg.expressions import And, GreaterThan, LessThanOrEqual

        wanted = And(
            _is("stream", stream),
            GreaterThan("offset", within.after),  # type: ignore[arg-type,call-arg]
            LessThanOrEqual("offset", within.until),  # type: ignore[arg-type,call-arg]
        )
        return self._read(files, version, COLUMNS, wanted)

    def _read(
        self, files: Sequence[str], version: int, columns: tuple[str, ...], wanted: Any
    ) -> pa.Table:
        with self._opened() as table:
            scan = table.scan(wanted, selected_fields=columns, snapshot_id=version)
            tasks = [task for task in scan.plan_files() if task.file.file_path in files]
            return _scanned(table, scan, tasks)

    def merge_files(self) -> None:
        """The parts stay on the disk: pyiceberg removes no files."""
        with self._opened() as table:
            for files in small_files(table):
                self.merge(table, files)

    def merge(self, table: Table, files: list[DataFile]) -> None:
        """One commit that replaces these files by their rows, whatever is added meanwhile."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        directory = self.lake.data_dir
        rows = pa.concat_tables(_rows(table, file) for file in files)
        names = set(rows.column_names)
        order = [(name, "ascending") for name in ("stream", "offset") if name in names]
        ordered = rows.sort_by(order) if order else rows  # a reader of one stream skips the rest
        plain = [name for name in partitions_of(table) if name in names]
        written = write_files(
            directory, "merged", ordered.to_batches(), plain, keep_partition_columns=True
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


def _is(column: str, value: str) -> Any:
    from pyiceberg.expressions import EqualTo

    return EqualTo(column, value)  # type: ignore[arg-type,call-arg]  # as its docs call it


def _check_archive(names: Iterable[str]) -> None:
    missing = sorted({"stream", *COLUMNS} - set(names))
    if missing:
        raise LakeError(f"The table has no column {missing[0]}, as archive writes it.")


def _by_stream(found: Iterable[tuple[str, pa.Table]]) -> FilesOfStreams:
    """From files and the column `stream` of each."""
    files: dict[str, list[str]] = defaultdict(list)
    for path, read in found:
        for name in pc.unique(read["stream"]).to_pylist():
            files[name].append(path)
    return {name: tuple(files[name]) for name in sorted(files)}


def _scanned(table: Table, scan: DataScan, tasks: list[FileScanTask]) -> pa.Table:
    """The scan of some of its files."""
    from pyiceberg.io.pyarrow import ArrowScan

    arrow = ArrowScan(table.metadata, table.io, scan.projection(), scan.row_filter)
    read: pa.Table = arrow.to_table(tasks)
    return read


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
