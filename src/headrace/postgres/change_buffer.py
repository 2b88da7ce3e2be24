"""Changes on their way into columns, in the order of the log: row messages by their kind.

Pure. What a row has of its transaction is not kept for each: it follows from where runs of rows
begin that are of one transaction and have consecutive numbers in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.postgres.change_table import NAMES, SCHEMA
from headrace.postgres.pgoutput import OID, Change, Relation, Transaction, decode_row
from headrace.postgres.row_columns import KIND_BYTES, RowGroup, decode_rows

_FEW = 100  # of a few messages each is decoded alone: all steps for a column take as long
_SINGLE = 0  # in `order`, of a change that did not come as a row message


class _Run(NamedTuple):
    """Rows from `first` on are of a transaction, and the first of them is its change `seq`."""

    first: int
    transaction: Transaction
    seq: int


class ChangeBuffer:
    """Add to `order` the index of a group with each message that is added to its `messages`."""

    def __init__(self) -> None:
        self.groups: dict[bytes, RowGroup] = {}  # by the first KIND_BYTES of their messages
        self.order: list[int] = []
        self._all: list[RowGroup] = []
        self._single: list[Change] = []
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return len(self.order)

    def begin_run(self, transaction: Transaction, seq: int) -> None:
        self._runs.append(_Run(len(self.order), transaction, seq))

    def open_group(self, message: bytes, relation: Relation) -> RowGroup:
        """A group for what is like `message`."""
        group = RowGroup(len(self._all) + 1, message[:KIND_BYTES], relation)
        self._all.append(group)
        self.groups[group.kind] = group
        return group

    def end_groups(self, oid: bytes) -> None:
        """A table was described anew: rows that follow may have other columns."""
        self.groups = {kind: each for kind, each in self.groups.items() if kind[OID] != oid}

    def add(self, change: Change) -> None:
        """A change that is complete but for what it has of its run."""
        self._single.append(change)
        self.order.append(_SINGLE)

    def record_batch(self) -> pa.RecordBatch:
        count = len(self.order)
        parts = [_of_group(group) for group in self._all if group.messages]
        if self._single:
            parts.insert(0, _of_rows([change[:6] for change in self._single]))
        columns = [pa.concat_arrays(arrays) for arrays in zip(*parts, strict=True)]
        if len(parts) > 1:
            places = np.empty(count, np.int64)
            places[np.argsort(self.order, kind="stable")] = np.arange(count)
            columns = [column.take(pa.array(places)) for column in columns]
        return pa.RecordBatch.from_arrays(columns + self._of_runs(count), schema=SCHEMA)

    def _of_runs(self, count: int) -> list[pa.Array]:
        """The columns lsn, seq, xid and committed_at."""
        firsts = np.array([run.first for run in self._runs], np.int64)
        lengths = np.diff(firsts, append=count)
        seqs = np.array([run.seq for run in self._runs], np.int64)
        seq = np.arange(count) + np.repeat(seqs - firsts, lengths)
        run_of_row = pa.array(np.repeat(np.arange(len(self._runs)), lengths))

        def of_each(values: Sequence[Any], name: str) -> pa.Array:
            return pa.array(values, SCHEMA.field(name).type).take(run_of_row)

        lsns, xids, times = zip(*(run.transaction for run in self._runs), strict=True)
        return [
            of_each(lsns, "lsn"),
            pa.array(seq, pa.int32()),
            of_each(xids, "xid"),
            of_each(times, "committed_at"),
        ]


def _of_group(group: RowGroup) -> list[pa.Array]:
    """The columns table, op, key, value, old and unchanged."""
    count = len(group.messages)
    if count < _FEW:
        rows = (decode_row(message, group.relation) for message in group.messages)
        return _of_rows([(group.relation.table, *row) for row in rows])
    found = decode_rows(group)
    return [
        pa.repeat(group.relation.table, count),
        pa.repeat(group.op, count),
        found.key,
        found.value,
        found.old,
        _no_names(count) if found.unchanged is None else pa.array(found.unchanged, NAMES),
    ]


def _of_rows(rows: Sequence[tuple[Any, ...]]) -> list[pa.Array]:
    *texts, names = zip(*rows, strict=True)
    return [*(pa.array(each, pa.string()) for each in texts), pa.array(names, NAMES)]


def _no_names(count: int) -> pa.Array:
    offsets = pa.array(np.zeros(count + 1, np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array([], pa.string()), type=NAMES)
