"""One target table within one stream: its changes collected, then merged in their order.

Changes that Postgres refuses are found by halving: each half is merged by itself, in order, so the
others have the effect that they would have had one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import psycopg

from headrace.changes.events import ColumnShape, Fields, NotAChange, Put, Row, Shape
from headrace.changes.folding import all_versions, last_versions
from headrace.changes.row_keys import key_text, key_values
from headrace.postgres.apply import target_tables
from headrace.postgres.apply.column_texts import ColumnText
from headrace.postgres.apply.merge import clear, merge_current, merge_history
from headrace.postgres.apply.target_tables import HISTORY
from headrace.postgres.ledger import SinkError
from headrace.postgres.sink import reason_of

NewColumns = Literal["add", "refuse", "ignore"]

# What a row is refused for. The limits are of class 54, and would be refused again, too.
REFUSED = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.StatementTooComplex,
)
_PLAIN = ColumnText()


@dataclass(frozen=True)
class Rules:
    """How changes are applied. `keys` are the key columns, else the table's primary key."""

    table: str = "{stream}"
    keys: tuple[str, ...] = ()
    history: bool = False
    create_table: bool = True
    new_columns: NewColumns = "add"
    fire_triggers: bool = True


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
        self.name = target_tables.qualified(name)
        self._now_us = now_us
        self._table = self._look()
        self._shape: tuple[ColumnShape, ...] = ()
        self._changes: list[Applied] = []
        self._new: dict[str, list[bytes]] = {}  # columns to add, with values that say their type
        self.columns = list(known_columns)  # what the source has, in its order
        self.was_widened = False
        self._is_key_compared = False
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

    def reshape(self, shape: Shape) -> None:
        """The source has these columns from here on."""
        self.flush()
        self._shape = shape.columns
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
        """The change with its key as text, which has as many parts as the table's key."""
        if self._table is None and not self._keys:
            self._create()  # which says what is wrong
        if change.key is None:
            return replace(change, key=self._key_of(change.fields))
        self._check(change.key, change)
        if isinstance(change, Put):
            if change.was is not None:
                self._check(change.was, change)
            if not self._is_key_compared:
                self._compare_key(change.key, change.fields)
        return change

    def _compare_key(self, text: str, fields: Fields) -> None:
        """Refuse rows known by other columns than the table's: deletes would miss them.

        Compared are texts and whole numbers, which have one form; and one row of a batch, since a
        stream's rows are all known by the same columns.
        """
        self._is_key_compared = True
        keys = self._keys or tuple(self.columns)
        for key, part in zip(keys, key_values(text, len(keys)), strict=True):
            value = fields.get(key, b"")
            has_one_form = value.startswith(b'"') or value.removeprefix(b"-").isdigit()
            if has_one_form and _PLAIN.of_json(value) != part:
                raise SinkError(
                    f"The stream of {self.name} knows a row as {text!r}, which does not match its "
                    f"{', '.join(keys)}, the key of the table. Set keys to the columns that the "
                    "stream's keys are made of, in their order."
                )

    def _check(self, key: str, change: Row) -> None:
        try:
            key_values(key, len(self._keys or self.columns))
        except ValueError as error:
            if self._table is not None and not self._keys and isinstance(change, Put):
                raise SinkError(
                    f"{self.name} has no primary key, and the stream's rows have one of other "
                    f"columns than all ({error}). Add it to the table, or set keys."
                ) from None
            raise NotAChange(str(error)) from None

    def _key_of(self, fields: Fields) -> str:
        keys = self._keys or tuple(self.columns)
        absent = [key for key in keys if key not in fields]
        if absent or not keys:
            raise NotAChange(f"the message lacks {', '.join(absent)} of the table's key")
        return key_text([_PLAIN.of_json(fields[key]) for key in keys])

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
            raise SinkError(
                f"{self.name} has no column {', '.join(new)}, which its stream has now. Add it, or "
                'set new_columns to "add" or "ignore". Nothing of the batch is written.'
            )
        target_tables.add_columns(
            self._connection, self.name, [self._described(*each) for each in new.items()]
        )
        self._table = self._look()

    def _described(self, name: str, values: list[bytes]) -> ColumnShape:
        for column in self._shape:
            if column.name == name:
                return column
        return target_tables.guessed(name, values)

    def _create(self) -> None:
        if not self._rules.create_table:
            raise SinkError(f"There is no table {self.name}. Make it, or set create_table.")
        if not self._keys:
            raise SinkError(
                f"There is no table {self.name}, and its stream does not say which columns are its "
                "key. Make it, or set keys."
            )
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
            raise SinkError(f"{self.name} has no key, and history is kept by key: set keys.")
        absent = [name for name in HISTORY if name not in self._table.columns]
        if absent:
            raise SinkError(f"{self.name} has no column {', '.join(absent)}, which history needs.")
        twice = [name for name in HISTORY if name in self.columns]
        if twice:
            raise SinkError(f"The source of {self.name} has a column {twice[0]}, as history has.")
        versions = list(all_versions(rows, self._now_us))
        merge_history(self._connection, self._table, self._written, versions)

    @property
    def _written(self) -> list[str]:
        """The columns that the source has and the table takes; a key comes with every change."""
        assert self._table is not None
        keys = [key for key in self._table.keys if key not in self.columns]
        return [*keys, *(name for name in self.columns if name in self._table.columns)]
