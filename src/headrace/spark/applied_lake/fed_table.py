"""A lake table as one stream feeds it: the stream's columns, and what a change leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from headrace.changes.change_keys import ChangeKeys
from headrace.changes.events import Clear, Put, Row, TableShape
from headrace.changes.rules import HISTORY, check_history
from headrace.spark.applied_lake.table_batch import TableBatch

_NULL: Final = b"null"


class FedTable:
    def __init__(self, batch: TableBatch, name: str, columns: list[str], *, history: bool) -> None:
        self._batch = batch
        self._history = history
        self._change_keys = ChangeKeys(name)
        self.name = name
        self.columns = list(columns)
        self.was_widened = False

    def add(self, change: Row, reject: Callable[[str], None]) -> None:
        keys = self._batch.required_keys()
        change = self._change_keys.named(change, keys)
        if not isinstance(change, Put):
            self._batch.check(change)
            self._batch.add(change, reject)
            return
        self._learn(change)
        whole = self._completed(change, keys)
        self._batch.check(whole)
        for name, value in change.fields.items():
            self._batch.want(name, value)
        self._batch.add(whole, reject)

    def _learn(self, change: Put) -> None:
        new = [name for name in change.fields if name not in self.columns]
        if new:
            self.columns += new
            self.was_widened = True
            self._check_history()

    def _check_history(self) -> None:
        if self._history:
            check_history(self.name, HISTORY, self.columns)

    def _completed(self, change: Put, keys: tuple[str, ...]) -> Put:
        """With every column: null where the stream has it and the change leaves it out; unchanged
        where only the table has it."""
        given = {*change.fields, *change.unchanged, *keys}
        absent = {name: _NULL for name in self.columns if name not in given}
        alone = [name for name in self._batch.left_alone(self.columns) if name not in given]
        if not absent and not alone:
            return change
        return replace(change, fields=change.fields | absent, unchanged=(*change.unchanged, *alone))

    def reshape(self, shape: TableShape) -> None:
        self.columns = [column.name for column in shape.columns]
        self.was_widened = True
        self._check_history()
        self._batch.describe(shape.columns)

    def clear(self, at_us: int | None) -> None:
        self._batch.clear(Clear(at_us=at_us))

    def flush(self) -> None:
        """A table gets one commit per batch, at its end."""
