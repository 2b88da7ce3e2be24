"""Reading: the batch reader and the stream reader of the data source `headrace`.

Planner, reader and task are different processes: everything a task needs travels in its
partition, and connections are made where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.errors import (
    HeadraceError,
    InvalidOffset,
    OffsetTrimmed,
    SnapshotNotFound,
    StreamDeleted,
    StreamNotFound,
)
from headrace.spark.runtime.workers import freeze_modules
from headrace.spark.streams.columns import Columns, arrow_schema, gathered
from headrace.spark.streams.offset_tracker import (
    REPLACED,
    BatchBounds,
    DataLoss,
    StreamProblem,
    Tracker,
)
from headrace.spark.streams.plan import (
    SNAPSHOT,
    OffsetRange,
    SparkOffset,
    StreamPartition,
    StreamTail,
    cut_into,
    cut_of,
    is_another,
    packed,
    partition_count,
    place,
    spans_between,
)
from headrace.spark.streams.prefetch import prefetched
from headrace.spark.streams.selection import selection_of
from headrace.spark.streams.stream_api import StreamApi
from headrace.spark.streams.stream_options import ReadOptions

_AHEAD_BYTES_MIN: Final = 1024 * 1024
_PREFETCH_BATCHES: Final = 2


class _Replaced(Exception):
    """The stream that was planned for is not the one that answers."""


def read_partition(
    options: ReadOptions, schema: pa.Schema, partition: StreamPartition, *, has_next: bool = False
) -> Iterator[pa.RecordBatch]:
    """`has_next`: another batch follows, which starts with the snapshot of a trimmed stream."""
    freeze_modules()
    server = StreamApi(options.settings)
    try:
        found = gathered(_batches(options, server, Columns(schema), partition, has_next))
        # A thread costs more than it saves where one answer holds everything.
        is_long = sum(span.bytes for span in partition.spans) > _AHEAD_BYTES_MIN
        yield from prefetched(found, _PREFETCH_BATCHES) if is_long else found
    finally:
        server.close()


def _batches(
    options: ReadOptions,
    server: StreamApi,
    columns: Columns,
    partition: StreamPartition,
    has_next: bool,
) -> Iterator[pa.RecordBatch]:
    for span in partition.spans:
        try:
            if options.from_snapshot:
                yield from _span_or_snapshot(server, columns, span, has_next)
            else:
                yield from _span_batches(server, columns, span)
        except (HeadraceError, _Replaced) as error:
            loss = _loss(server, span, error)
            if loss is None:
                raise StreamProblem(f"{span.stream}: {error}") from error
            if options.fail_on_data_loss:
                raise DataLoss(
                    f"{span.stream}: {loss} Its messages from {span.start} to {span.end} were "
                    "planned for this batch. Set failOnDataLoss=false to continue without them."
                ) from None


def _span_or_snapshot(
    server: StreamApi, columns: Columns, span: OffsetRange, has_next: bool
) -> Iterator[pa.RecordBatch]:
    """What was planned. If it was trimmed since: from the stream's snapshot to the same end.

    A snapshot that lies behind that end has all of it. Then there is nothing to read here, and the
    next batch starts with that snapshot.
    """
    while True:
        try:
            yield from _span_batches(server, columns, span)
            return
        except (OffsetTrimmed, SnapshotNotFound):
            [tail] = server.tails([{"stream": span.stream}])
            earliest = tail.earliest_offset
            if is_another(tail.created_at_ms, span.created_at_ms):
                raise
            if earliest > span.end and has_next:
                return
            if earliest > span.end or span.start == f"{SNAPSHOT}{earliest}":
                raise
            span = replace(span, start=f"{SNAPSHOT}{earliest}")


def _loss(server: StreamApi, span: OffsetRange, error: HeadraceError | _Replaced) -> str | None:
    """Why what was planned is not there any more, if that is what `error` says."""
    if isinstance(error, StreamNotFound | StreamDeleted | OffsetTrimmed | _Replaced):
        return str(error)
    # Past the tail of another one, perhaps, or one without that snapshot.
    if isinstance(error, InvalidOffset | SnapshotNotFound) and _is_replaced(server, span):
        return REPLACED
    return None


def _is_replaced(server: StreamApi, span: OffsetRange) -> bool:
    [tail] = server.tails([{"stream": span.stream}])
    return is_another(tail.created_at_ms, span.created_at_ms)


def _span_batches(
    server: StreamApi, columns: Columns, span: OffsetRange
) -> Iterator[pa.RecordBatch]:
    start = span.start
    if start.startswith(SNAPSHOT):
        start = start.removeprefix(SNAPSHOT)
        if _is_replaced(server, span):
            raise _Replaced(REPLACED)
        yield from _snapshot_rows(server, columns, span.stream, start)
    for chunk in server.read_range(span.stream, start, span.end):
        if is_another(chunk.created_at_ms, span.created_at_ms):
            raise _Replaced(REPLACED)
        yield columns.of_frame(span.stream, chunk.content_type, chunk.body)


def _snapshot_rows(
    server: StreamApi, columns: Columns, stream: str, offset: str
) -> Iterator[pa.RecordBatch]:
    """The snapshot of `stream` at `offset`, as one row with the snapshot's own content type."""
    snapshot = server.snapshot(stream, offset)
    yield columns.of_message(stream, snapshot.content_type, snapshot.body, offset)


def _partitions(
    tracker: Tracker, spans: list[OffsetRange], least: int, most: int
) -> Sequence[StreamPartition]:
    count = partition_count(spans, least, most)
    if spans and len(spans) < least:
        # More partitions than streams were asked for: only then is a stream cut, because the
        # pieces are read side by side and their order is lost.
        pieces = -(-least // len(spans))
        spans = [piece for span in spans for piece in tracker.split(span, pieces)]
    return packed(spans, count)


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        server = StreamApi(self._options.settings)
        try:
            tracker = Tracker(self._options, server, selection_of(self._options, server))
            start = tracker.initial()
            end = place(start, tracker.pending(start, tracker.ending()))
            least, most = self._options.partitions_min, self._options.partitions_max
            return _partitions(tracker, spans_between(start, end), least, most)
        finally:
            server.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, StreamPartition):
            return iter(())  # Spark's own, where there is nothing to read
        return read_partition(self._options, self._schema, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver; `read` runs in the tasks and uses none of what the driver keeps."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._tracker_now: Tracker | None = None
        self._server_now: StreamApi | None = None
        self._initial: SparkOffset | None = None
        self._target: dict[str, StreamTail] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tracker_now": None, "_server_now": None}

    @property
    def _tracker(self) -> Tracker:
        if self._tracker_now is None:
            server = self._server_now = StreamApi(self._options.settings)
            selection = selection_of(self._options, server)
            self._tracker_now = Tracker(self._options, server, selection)
        return self._tracker_now

    def initialOffset(self) -> SparkOffset:  # noqa: N802
        # Asked for twice: a second answer of `latest` would leave out what came in between.
        if self._initial is None:
            self._initial = self._tracker.initial()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.messages_max is not None:
            return ReadMaxRows(options.messages_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._tracker.tails()

    def latestOffset(self, start: SparkOffset, limit: ReadLimit) -> SparkOffset:  # noqa: N802
        options = self._options
        bounds = BatchBounds(options.messages_max, options.bytes_max)
        if isinstance(limit, ReadAllAvailable):
            bounds = BatchBounds()
        end = self._tracker.latest(start, bounds, self._target)
        return (
            end if end is start else cut_into(end, options.partitions_min, options.partitions_max)
        )

    def reportLatestOffset(self) -> SparkOffset | None:  # noqa: N802
        tails = self._tracker.tails()
        return {"at": {name: tails[name].offset for name in sorted(tails)}}

    def partitions(self, start: SparkOffset, end: SparkOffset) -> Sequence[InputPartition]:
        options = self._options
        least, most = cut_of(end) or (options.partitions_min, options.partitions_max)
        return _partitions(self._tracker, spans_between(start, end), least, most)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, StreamPartition), "partitions are our own"
        return read_partition(self._options, self._schema, partition, has_next=True)

    def stop(self) -> None:
        if self._server_now is not None:
            self._server_now.close()
        self._server_now = self._tracker_now = None
