"""One target table within one stream: its changes collected, then merged in their order.

Changes that Postgres refuses are found by halving: each half is merged by itself, in order, so the
others have the effect that they would have had one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import psycopg

from headrace.changes.change_keys import ChangeKeys, KeyMismatch
from headrace.changes.events import ColumnShape, Fields, Put, Row, TableShape
from headrace.changes.folding import all_versions, last_versions
from headrace.changes.guessed_types import guessed
from headrace.changes.rules import (
    CannotApply,
    Rules,
    check_history,
    no_key,
    no_table,
    qualified,
    unwanted_columns,
)
from headrace.postgres.apply import target_tables
from headrace.postgres.apply.merge import clear, merge_current, merge_history
from headrace.postgres.sink import reason_of

# What a row is refused for. The limits are of class 54, and would be refused again, too.
REFUSED = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.StatementTooComplex,
)


class Applied(NamedTuple):
    """A change, and what to call it if it is refused."""

    change: Row
    reject: Callable[[str], None]


class AppliedTable:
    def __init__(
        self,
        connection: psycopg.Connection,
        rules: Rules,
        name: str,
        known_columns: Sequence[str],
        now_us: int,
    ) -> None:
        self._connection = connection
        self._rules = rules
        self.name = qualified(name)
        self._now_us = now_us
        self._table = self._look()
        self._shape: tuple[ColumnShape, ...] = ()
        self._has_key = True
        self._changes: list[Applied] = []
        self._new: dict[str, list[bytes]] = {}  # columns to add, with values that say their type
        self.columns = list(known_columns)  # what the source has, in its order
        self.was_widened = False
        self._change_keys = ChangeKeys(self.name)
        self._settled: set[str] = set()  # columns that source and table have

    def _look(self) -> target_tables.TargetTable | None:
        rules = self._rules
        return target_tables.look(self._connection, self.name, rules.keys, history=rules.history)

    @property
    def _keys(self) -> tuple[str, ...]:
        if self._table is not None:
            return self._table.keys
        return self._rules.keys or tuple(column.name for column in self._shape if column.key)

    def add(self, change: Row, reject: Callable[[str], None]) -> None:
        """Take a change; NotAChange if its key does not fit the table."""
        if isinstance(change, Put):
            fields = self._with_documents(change) if change.has_document_texts else change.fields
            change = replace(change, fields=fields)
            self._know(fields)
        self._changes.append(Applied(self._named(change), reject))

    def reshape(self, shape: TableShape) -> None:
        """The source has these columns from here on."""
        self.flush()
        self._shape, self._has_key = shape.columns, shape.has_key
        self.columns = [column.name for column in shape.columns]
        self.was_widened = True
        self._settled = set()
        self._new = {name: [] for name in self.columns if not self._has(name)}
        self._widen()

    def clear(self, at_us: int | None) -> None:
        """Remove all rows, those that are not merged yet too."""
        if self._rules.history:
            self.flush()
        self._changes = []
        if self._table is not None:
            at_us = self._now_us if at_us is None else at_us
            clear(self._connection, self._table, at_us, history=self._rules.history)

    def flush(self) -> None:
        """Merge what was taken."""
        changes, self._changes = self._changes, []
        if not changes:
            return
        self._widen()
        assert self._table is not None, "it was made, or that was refused"
        self._merge(changes)

    # -- keys -----------------------------------------------------------------------------------

    def _named(self, change: Row) -> Row:
        """The change with its key as text. Without a key in the table, all columns are the key."""
        if self._table is None and not self._keys:
            self._create()  # which says what is wrong
        try:
            return self._change_keys.named(change, self._keys or tuple(self.columns))
        except KeyMismatch as error:
            if self._table is not None and not self._keys and isinstance(change, Put):
                raise CannotApply(
                    f"{self.name} has no primary key, and the stream's rows have one of other "
                    f"columns than all ({error}). Add it to the table, or set keys."
                ) from None
            raise

    def _with_documents(self, change: Put) -> Fields:
        """The content of JSON columns, which Debezium sends as strings."""
        columns = self._table.columns if self._table is not None else {}
        return {
            name: (columns[name].of_json(value, has_document_texts=True) or "null").encode()
            if name in columns and columns[name].kind == "json"
            else value
            for name, value in change.fields.items()
        }

    # -- columns --------------------------------------------------------------------------------

    def _know(self, fields: Fields) -> None:
        if fields.keys() <= self._settled:
            return
        for name in fields:  # in their order, which is that of a key of all columns
            if name not in self.columns:
                self.columns.append(name)
                self.was_widened = True
            if self._has(name):
                self._settled.add(name)
            else:
                self._new.setdefault(name, []).append(fields[name])

    def _has(self, name: str) -> bool:
        table = self._table
        return table is not None and (name in table.columns or name in table.generated)

    def _widen(self) -> None:
        """Make the table, or add the columns that it lacks, as far as that is allowed."""
        if self._table is None:
            self._create()
        elif self._new and self._rules.new_columns != "ignore":
            self._add_columns(self._new)
        self._new = {}

    def _add_columns(self, new: dict[str, list[bytes]]) -> None:
        if self._rules.new_columns == "refuse":
            raise unwanted_columns(self.name, ", ".join(new))
        target_tables.add_columns(
            self._connection, self.name, [self._described(*each) for each in new.items()]
        )
        self._table = self._look()

    def _described(self, name: str, values: list[bytes]) -> ColumnShape:
        for column in self._shape:
            if column.name == name:
                return column
        return guessed(name, values)

    def _create(self) -> None:
        if not self._rules.create_table:
            raise no_table(self.name)
        if self._has_key and not self._keys:
            raise no_key(self.name)
        new: dict[str, list[bytes]] = {name: [] for name in self._keys}
        new |= self._new
        columns = [self._described(*each) for each in new.items()]
        history = self._rules.history
        target_tables.create(self._connection, self.name, columns, self._keys, history=history)
        self._table = self._look()

    # -- rows -----------------------------------------------------------------------------------

    def _merge(self, changes: Sequence[Applied]) -> None:
        try:
            self._attempt(changes)
            return
        except REFUSED as error:
            if len(changes) == 1:
                changes[0].reject(reason_of(error))
                return
        half = len(changes) // 2
        self._merge(changes[:half])
        self._merge(changes[half:])

    def _attempt(self, changes: Sequence[Applied]) -> None:
        rows = [each.change for each in changes]
        if self._rules.history:
            with self._connection.transaction():
                self._merge_history(rows)
            return
        try:
            with self._connection.transaction():
                self._merge_current(rows, replace=False)
        except psycopg.errors.UniqueViolation:
            # Perhaps only in between, as when two rows swap a value that is unique.
            with self._connection.transaction():
                self._merge_current(rows, replace=True)

    def _merge_current(self, rows: Sequence[Row], *, replace: bool) -> None:
        assert self._table is not None
        versions = last_versions(rows, self._now_us)
        merge_current(self._connection, self._table, self._written, versions, replace=replace)

    def _merge_history(self, rows: Sequence[Row]) -> None:
        assert self._table is not None
        if not self._table.keys:
            raise CannotApply(f"{self.name} has no key, and history is kept by key: set keys.")
        check_history(self.name, self._table.columns, self.columns)
        versions = list(all_versions(rows, self._now_us))
        merge_history(self._connection, self._table, self._written, versions)

    @property
    def _written(self) -> list[str]:
        """The columns that the source has and the table takes; a key comes with every change."""
        assert self._table is not None
        keys = [key for key in self._table.keys if key not in self.columns]
        return [*keys, *(name for name in self.columns if name in self._table.columns)]
