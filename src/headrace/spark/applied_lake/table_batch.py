"""The changes of one batch to one lake table: taken from its streams, then one commit.

All that a table gets in a batch goes through here, in one task. What cannot be applied is known
before anything is committed; the commit is repeated if somebody else's came in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from headrace.backoff import Backoff
from headrace.changes.events import Clear, ColumnShape, NotAChange, Row
from headrace.changes.guessed_types import guessed
from headrace.changes.rules import (
    CURRENT,
    HISTORY,
    VALID_FROM,
    VALID_TO,
    CannotApply,
    Rules,
    check_history,
    no_key,
    no_table,
    unwanted_columns,
)
from headrace.spark.applied_lake.column_types import UTC_TIME, arrow_schema, arrow_type
from headrace.spark.applied_lake.keyed_tables import BatchId, Conflict, KeyedTable, Version
from headrace.spark.applied_lake.merged_rows import Step, Table, current_rows, history_rows
from headrace.spark.applied_lake.row_values import RowValues
from headrace.spark.lake.parquet_files import LakeError
from headrace.spark.lake.table_history import GONE, TableMark

_ATTEMPTS: Final = 20
_RETRY_SECS: Final = Backoff(0.05, 2.0)
Reject = Callable[[str], None]

_HISTORY_TYPES: Final = {VALID_FROM: UTC_TIME, VALID_TO: UTC_TIME, CURRENT: pa.bool_()}


@dataclass(frozen=True)
class Batch:
    """What is the same for all tables. `exactly_once` off is only to show what it is for."""

    id: BatchId
    rules: Rules
    now_us: int
    checkpoint: str
    exactly_once: bool = True


class TableBatch:
    def __init__(self, table: KeyedTable, name: str, batch: Batch, mark: TableMark | None) -> None:
        self._table = table
        self._name = name
        self._batch = batch
        self._rules = batch.rules
        self._mark = mark
        self._steps: list[Step] = []
        self._rejects: dict[int, Reject] = {}  # by the place of a step
        self._shape: dict[str, ColumnShape] = {}
        self._guesses: dict[str, list[bytes]] = {}  # values of new columns that nothing describes
        self._wanted: list[str] = []  # new columns, in their order
        self._take(table.open())

    def _take(self, stored: Version | None) -> None:
        self._stored = stored
        has = stored.schema if stored is not None else ()
        self._columns: dict[str, pa.Field | None] = {field.name: field for field in has}

    @property
    def keys(self) -> tuple[str, ...]:
        if self._rules.keys:
            return self._rules.keys
        if self._stored is not None:
            return self._stored.keys
        return tuple(each.name for each in self._shape.values() if each.key)

    def required_keys(self) -> tuple[str, ...]:
        keys = self.keys
        if not keys and self._stored is None:
            raise no_table(self._name) if not self._rules.create_table else no_key(self._name)
        if not keys:
            raise CannotApply(
                f"{self._table.place} does not say which columns are the key of {self._name}: set "
                "keys."
            )
        return keys

    def left_alone(self, source: Sequence[str]) -> list[str]:
        """The columns that the table has and this source has not."""
        if self._stored is None:
            return []
        ours = {*source, *(HISTORY if self._rules.history else ())}
        return [name for name in self._stored.schema.names if name not in ours]

    def want(self, name: str, value: bytes | None = None) -> None:
        """A stream has this column; `value` is one that it has, if nothing else says its type."""
        is_ignored = self._stored is not None and self._rules.new_columns == "ignore"
        if is_ignored or self._columns.get(name) is not None:
            return
        if name not in self._columns:
            self._columns[name] = None
            self._wanted.append(name)
        if value is not None:
            self._guesses.setdefault(name, []).append(value)

    def describe(self, columns: Sequence[ColumnShape]) -> None:
        self._shape = {each.name: each for each in columns}
        for each in columns:
            self.want(each.name)
            if self._columns.get(each.name, ()) is None:
                self._columns[each.name] = pa.field(each.name, arrow_type(each.type))
                self._guesses.pop(each.name, None)

    def check(self, change: Row) -> None:
        """NotAChange if the table cannot hold it. The columns of history are not the source's."""
        columns = self._columns
        if self._rules.history:
            columns = {name: field for name, field in columns.items() if name not in HISTORY}
        RowValues(columns, self.keys).check(change)

    def add(self, change: Row, reject: Reject) -> None:
        self._rejects[len(self._steps)] = reject
        self._steps.append(change)

    def clear(self, clear: Clear) -> None:
        if not self._rules.history:
            self._steps = []
        if self._stored is not None or self._steps:
            self._steps.append(clear)

    # -- the commit -----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Find what stops the batch or is to be set aside, before anything is committed."""
        if self._stored is not None:
            self._refuse_lost(self._stored)
            self._refuse_another_checkpoint(self._stored)
        elif self._mark is not None:
            self._refuse(GONE)
        if not self._steps and not self._wanted:
            return
        keys = self.required_keys()
        if self._stored is None and not self._rules.create_table:
            raise no_table(self._name)
        if self._stored is not None and self._wanted and self._rules.new_columns == "refuse":
            raise unwanted_columns(self._name, ", ".join(self._wanted))
        if self._rules.history and self._stored is not None:
            check_history(self._name, self._stored.schema.names, ())
        absent = [key for key in keys if key not in self._columns]
        if absent and self._stored is not None:
            raise CannotApply(f"{self._name} has no column {absent[0]}, a key: set keys.")
        if absent or any(field is None for field in self._columns.values()):
            self._check_guessed()

    def _check_guessed(self) -> None:
        """Reject what does not fit columns that got their type from the values of others."""
        new = [name for name in (*self.keys, *self._columns) if self._columns.get(name) is None]
        self._columns |= {field.name: field for field in self._described(new)}
        steps = []
        for number, step in enumerate(self._steps):
            try:
                if not isinstance(step, Clear):
                    self.check(step)
                steps.append(step)
            except NotAChange as error:
                self._rejects[number](str(error))
        self._steps = steps

    def _refuse_lost(self, stored: Version) -> None:
        if self._mark is not None and self._batch.exactly_once:
            lost = stored.lost(self._mark, self._batch.id.query)
            if lost is not None:
                self._refuse(lost)

    def _refuse(self, lost: str) -> None:
        assert self._mark is not None
        raise LakeError(
            f"{self._table.place}: this query has committed batch {self._mark.batch} to the table "
            f"(version or snapshot {self._mark.version}), and now the table {lost}. Nothing more "
            "is written. To write everything again: headrace pipeline reset apply-changes, after "
            f"which the table is made from its streams once more. ({self._batch.checkpoint} has "
            "the note.)"
        )

    def _refuse_another_checkpoint(self, stored: Version) -> None:
        if not self._batch.exactly_once:
            return
        id = self._batch.id
        last = stored.last_batch(id.query)
        if last > id.number:
            raise CannotApply(
                f"{self._table.place} has batch {last} of this query, and now comes batch "
                f"{id.number}: the checkpoint is an older copy. Restore the newest one, or: "
                "headrace pipeline reset apply-changes, after which every change is applied again."
            )
        if last < 0 and stored.knows(id.writer):
            raise CannotApply(
                f"{self._table.place} has batches of the writer {id.writer} from another "
                "checkpoint. If that is lost: headrace pipeline reset apply-changes, after which "
                "every change is applied again. If it is another pipeline, give this one another "
                "writer."
            )

    def commit(self) -> TableMark | None:
        """Make or widen the table and replace rows; what the table was after that."""
        if not self._steps and not self._wanted:
            return self._mark
        waits = _RETRY_SECS.waits()
        for _ in range(_ATTEMPTS):
            try:
                return self._attempt()
            except Conflict as error:
                conflict = error
                time.sleep(next(waits))
        raise LakeError(
            f"{self._table.place}: others commit to the table all the time, so that no batch fits "
            f"in between ({conflict}). Nothing of this batch is in the table."
        )

    def _attempt(self) -> TableMark | None:
        stored = self._fitting()
        self._refuse_another_checkpoint(stored)
        id = self._batch.id
        is_in = self._batch.exactly_once and stored.last_batch(id.query) == id.number
        if self._steps and not is_in:
            values = RowValues({field.name: field for field in stored.schema}, self.keys)
            table = Table(stored, self.keys, values)
            merge = history_rows if self._rules.history else current_rows
            stored.replace(self._batch.id, merge(table, self._steps, self._batch.now_us))
            stored = self._opened()
        last = stored.last_batch(id.query)
        return stored.mark(last) if last >= 0 else self._mark

    def _fitting(self) -> Version:
        """The newest version, with the columns that it is to have."""
        stored = self._table.open()
        if stored is None:
            self._table.create(self._new_schema(), self.keys)
        elif self._rules.new_columns == "add":
            new = self._described(name for name in self._wanted if name not in stored.schema.names)
            if not new.names:
                return stored
            self._table.add_columns(new)
        else:
            return stored
        return self._opened()

    def _opened(self) -> Version:
        stored = self._table.open()
        if stored is None:
            raise LakeError(f"{self._table.place} was removed while it was written to.")
        return stored

    def _new_schema(self) -> pa.Schema:
        names = dict.fromkeys((*self.keys, *self._wanted))
        schema = self._described(names)
        if self._rules.history:
            check_history(self._name, HISTORY, schema.names)
            for name, kind in _HISTORY_TYPES.items():
                schema = schema.append(pa.field(name, kind))
        return schema

    def _described(self, names: Iterable[str]) -> pa.Schema:
        return arrow_schema(
            [self._shape.get(name) or guessed(name, self._guesses.get(name, ())) for name in names]
        )
