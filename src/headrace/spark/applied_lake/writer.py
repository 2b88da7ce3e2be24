"""One partition of a batch of messages, applied to lake tables: one commit per table.

All streams that feed a table are in one partition, each in the order of its offsets. Tables are
committed one after the other; a batch that comes again finds itself in those that have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from headrace.changes.applying import StreamChanges, messages_of
from headrace.changes.rejected import Rejected
from headrace.spark.applied_lake.fed_table import FedTable
from headrace.spark.applied_lake.keyed_tables import Lake
from headrace.spark.applied_lake.stream_memory import LakeMemory, Streams, pending_dir
from headrace.spark.applied_lake.table_batch import Batch, TableBatch
from headrace.spark.lake.table_history import TableMark


class Applied(NamedTuple):
    """What a partition did: messages applied, what is known of its streams, its tables."""

    rows: int
    streams: Streams
    marks: dict[str, TableMark]


@dataclass(frozen=True)
class Known:
    """What the driver knew before the batch."""

    streams: Streams
    marks: dict[str, TableMark]


def apply(
    lake: Lake,
    batch: Batch,
    known: Known,
    batches: Iterable[pa.RecordBatch],
    reject: Callable[[list[Rejected]], None],
) -> Applied:
    """Apply the messages, which are ordered by stream and offset.

    What is not a change, and what a table cannot hold, is handed to `reject` before anything is
    committed.
    """
    tables: dict[str, TableBatch] = {}

    def open_table(name: str, columns: list[str]) -> FedTable:
        if name not in tables:
            tables[name] = TableBatch(lake.table(name), name, batch, known.marks.get(name))
        return FedTable(tables[name], name, columns, history=batch.rules.history)

    streams = dict(known.streams)
    mine: set[str] = set()
    changes: list[StreamChanges] = []
    rows = 0
    for stream, messages in groupby(messages_of(batches), lambda message: message.stream):
        memory = LakeMemory(streams, stream, pending_dir(lake.root, batch.id.query))
        changes.append(StreamChanges(batch.rules, memory, stream, open_table))
        rows += changes[-1].apply(messages)
        mine.add(stream)
    for table in tables.values():
        table.prepare()
    rejected = [each for part in changes for each in part.rejected]
    # In one order, whenever each was found: a repeated batch sends the same records alike.
    rejected.sort(key=lambda each: (each.row["stream"], each.row["offset"]))
    reject(rejected)
    marks = {name: mark for name, table in tables.items() if (mark := table.commit()) is not None}
    return Applied(
        rows - len(rejected), {name: streams[name] for name in mine if name in streams}, marks
    )
