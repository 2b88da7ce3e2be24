"""What a batch's changes make of a table's rows: the rows as they are now, or with their history.

Reads the table as it was before the batch; the result is one replacement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from headrace.changes.events import Clear, Row
from headrace.changes.folding import Version, all_versions, last_versions
from headrace.changes.rules import CURRENT, VALID_FROM, VALID_TO
from headrace.spark.applied_lake import keyed_tables
from headrace.spark.applied_lake.keyed_tables import Key, Replacement
from headrace.spark.applied_lake.row_values import RowValues, Values, keys_table, table_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

Step = Row | Clear


@dataclass(frozen=True)
class Table:
    """A version of a table, with its keys and how its values are read."""

    stored: keyed_tables.Version
    keys: tuple[str, ...]
    values: RowValues


def current_rows(table: Table, steps: Sequence[Step], now_us: int) -> Replacement:
    """The last version of each key. Of what is before a reset nothing is left."""
    resets = [number for number, step in enumerate(steps) if isinstance(step, Clear)]
    after = steps[resets[-1] + 1 :] if resets else steps
    versions = last_versions([step for step in after if not isinstance(step, Clear)], now_us)
    bases = {} if resets else _bases(table, versions)
    rows = [_row(table, version, bases) for version in versions if not version.is_gone]
    gone = [table.values.key(version.key) for version in versions if version.is_gone]
    schema = table.stored.schema
    return Replacement(
        table.keys,
        table_of(rows, schema),
        keys_table(gone, table.keys, schema),
        everything=bool(resets),
    )


def _bases(table: Table, versions: Sequence[Version]) -> dict[Key, Values]:
    """The stored rows that have what versions leave out."""
    wanted = {table.values.key(each.base) for each in versions if each.base is not None}
    found = table.stored.rows_of(table.keys, wanted)
    return {tuple(row[key] for key in table.keys): row for row in found}


def _row(table: Table, version: Version, bases: dict[Key, Values]) -> Values:
    base = bases.get(table.values.key(version.base)) if version.base is not None else None
    return table.values.row(version, base)


def history_rows(table: Table, steps: Sequence[Step], now_us: int) -> Replacement:
    """Every version, and the end of the one that was current.

    A version begins when its change says, but never before the end of the last one: clocks of
    several writers may differ, and the order of the stream decides.
    """
    segments = list(_segments(steps, now_us))
    history = _History(table)
    history.load(segments)
    for segment in segments:
        if isinstance(segment, Clear):
            history.clear(now_us if segment.at_us is None else segment.at_us)
        else:
            history.add(segment)
    schema = table.stored.schema
    on = (*table.keys, VALID_FROM)
    return Replacement(on, table_of(history.written(), schema), keys_table([], on, schema))


def _segments(steps: Sequence[Step], now_us: int) -> Iterator[list[Version] | Clear]:
    """The versions between two resets, and the resets."""
    rows: list[Row] = []
    for step in steps:
        if isinstance(step, Clear):
            yield list(all_versions(rows, now_us))
            yield step
            rows = []
        else:
            rows.append(step)
    yield list(all_versions(rows, now_us))


class _History:
    def __init__(self, table: Table) -> None:
        self._table = table
        self._current: dict[Key, Values] = {}
        self._free_from: dict[Key, int] = {}  # microseconds; a key's next version begins then
        self._ended: list[Values] = []  # rows of the table
        self._added: list[Values] = []
        self._is_stored: set[int] = set()  # ids of rows that the table has

    def load(self, segments: Sequence[list[Version] | Clear]) -> None:
        versions = [each for part in segments if not isinstance(part, Clear) for each in part]
        texts = {each.key for each in versions} | {each.base for each in versions if each.base}
        stored = self._table.stored
        rows = stored.rows_of(self._table.keys, {self._table.values.key(text) for text in texts})
        if any(isinstance(part, Clear) for part in segments):
            rows += stored.rows_where(CURRENT)
        for row in rows:
            key = self._key(row)
            after = _micros(row[VALID_FROM]) + 1
            if row[VALID_TO] is not None:
                after = max(after, _micros(row[VALID_TO]))
            self._free_from[key] = max(after, self._free_from.get(key, after))
            if row[CURRENT] and key not in self._current:
                self._current[key] = row
                self._is_stored.add(id(row))

    def _key(self, row: Values) -> Key:
        return tuple(row[name] for name in self._table.keys)

    def add(self, versions: Sequence[Version]) -> None:
        # What versions leave out is in the rows before the segment: the folding did the rest.
        bases = {key: dict(row) for key, row in self._current.items()}
        for version in versions:
            key = self._table.values.key(version.key)
            begins = max(version.at_us, self._free_from.get(key, version.at_us))
            current = self._current.pop(key, None)
            if current is not None:
                self._end(current, begins)
            self._free_from[key] = begins
            if not version.is_gone:
                self._begin(key, _row(self._table, version, bases), begins)

    def _begin(self, key: Key, row: Values, at_us: int) -> None:
        row |= {VALID_FROM: _time(at_us), VALID_TO: None, CURRENT: True}
        self._added.append(row)
        self._current[key] = row
        self._free_from[key] = at_us + 1

    def _end(self, row: Values, at_us: int) -> None:
        row |= {VALID_TO: _time(at_us), CURRENT: False}
        if id(row) in self._is_stored:
            self._ended.append(row)

    def clear(self, at_us: int) -> None:
        for key, row in self._current.items():
            ends = max(at_us, _micros(row[VALID_FROM]) + 1)
            self._end(row, ends)
            self._free_from[key] = max(ends, self._free_from[key])
        self._current = {}

    def written(self) -> list[Values]:
        return [*self._ended, *self._added]


def _micros(at: datetime) -> int:
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def _time(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at_us)
