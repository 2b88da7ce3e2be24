"""A stream that begins with its snapshot: what was trimmed, as rows."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from headrace.spark.streams.columns import Columns
from headrace.spark.streams.stream_api import Server


def snapshot_rows(
    server: Server, columns: Columns, stream: str, offset: str
) -> Iterator[pa.RecordBatch]:
    """The snapshot of `stream` at `offset`, as one row with the snapshot's own content type."""
    snapshot = server.snapshot(stream, offset)
    yield columns.of_message(stream, snapshot.content_type, snapshot.body, offset)
