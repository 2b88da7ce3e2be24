"""One partition of a batch of messages, applied to tables in one transaction with its ledger row.

A partition has streams as a whole, each in the order of its offsets: what is of one key stays in
order. So a table's rows are those of its stream at the offset of the last batch, neither between
two messages nor ahead in some partition.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

import psycopg
import pyarrow as pa

from headrace.changes.applying import StreamChanges, messages_of
from headrace.changes.rejected import Rejected
from headrace.changes.rules import Rules
from headrace.postgres.apply.applied_table import AppliedTable
from headrace.postgres.apply.registry import TableRegistry
from headrace.postgres.ledger import Claim
from headrace.postgres.sink import Connect, Reject, SinkResult, SinkTarget, once


def apply(
    target: SinkTarget,
    rules: Rules,
    writer: str,
    claim: Claim | None,
    batches: Sequence[pa.RecordBatch],
    reject: Reject,
    connect: Connect = psycopg.connect,
) -> SinkResult:
    """Apply the messages, which are ordered by stream and offset; retry while Postgres is down.

    Batches have the columns stream, offset, value and is_snapshot. What is not a change, and what
    Postgres refuses, is handed to `reject` before the rest is committed.
    """
    return once(target, claim, lambda c: _apply(c, rules, writer, batches, reject), connect)


def _apply(
    connection: psycopg.Connection,
    rules: Rules,
    writer: str,
    batches: Sequence[pa.RecordBatch],
    reject: Reject,
) -> SinkResult:
    if not rules.fire_triggers:
        connection.execute("set local session_replication_role = replica")
    rejected: list[Rejected] = []
    rows = 0
    now_us = time.time_ns() // 1000

    def open_table(name: str, columns: list[str]) -> AppliedTable:
        return AppliedTable(connection, rules, name, columns, now_us)

    for stream, messages in groupby(messages_of(batches), lambda message: message.stream):
        applied = StreamChanges(
            rules, TableRegistry(connection, writer, stream), stream, open_table
        )
        rows += applied.apply(messages)
        rejected += applied.rejected
    reject(rejected)
    return SinkResult(rows - len(rejected), rejected)
