"""Rows on their way into a table: copied into a temporary one, with what they leave out filled in.

A version that leaves out columns is joined with the stored row that has them, before anything of
the table is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
from psycopg import sql

from headrace.changes.folding import Version
from headrace.changes.row_keys import key_values
from headrace.changes.rules import CURRENT
from headrace.postgres.apply.target_tables import TargetTable

ROWS: Final = sql.Identifier("headrace_rows")
_PARTIAL: Final = sql.Identifier("headrace_partial")
SEQ: Final = sql.Identifier("headrace_seq")
AT: Final = sql.Identifier("headrace_at")
IS_GONE: Final = sql.Identifier("headrace_gone")
_MISSING: Final = sql.Identifier("headrace_missing")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_EXTRAS: Final = sql.SQL(", 0::int as headrace_seq, now() as headrace_at, false as headrace_gone")

Texts = list[str | None]


@dataclass(frozen=True)
class StagedVersions:
    """Of versions of one table, which has the source's `columns`."""

    connection: psycopg.Connection
    table: TargetTable
    columns: Sequence[str]
    history: bool

    @property
    def keys(self) -> Sequence[str]:
        return self.table.keys or self.columns

    def match(self, left: str, right: str) -> sql.Composed:
        """Whether two rows have the same key. Where all columns are the key, null equals null."""
        mine, others = names(self.keys, left), names(self.keys, right)
        if not self.table.keys:
            return sql.SQL("row({})::text = row({})::text").format(mine, others)
        return sql.SQL("({}) = ({})").format(mine, others)

    def fill(self, versions: Sequence[Version]) -> None:
        """Make the temporary table, with a row for each version."""
        self.connection.execute(
            sql.SQL(
                "create temp table {} on commit drop as select {}{} from {} with no data"
            ).format(ROWS, names(self.columns), _EXTRAS, self.table.identifier)
        )
        numbered = list(enumerate(versions))
        whole = [each for each in numbered if not each[1].missing]
        partial = [each for each in numbered if each[1].missing]
        self._copy(ROWS, [], (self._texts(*each) for each in whole))
        if partial:
            self._fill_partial(partial)

    def drop(self) -> None:
        self.connection.execute(sql.SQL("drop table {}").format(ROWS))

    def _fill_partial(self, versions: Sequence[tuple[int, Version]]) -> None:
        bases = [f"headrace_base_{number}" for number in range(len(self.keys))]
        based = sql.SQL(", ").join(
            sql.SQL("{} as {}").format(sql.Identifier(key), sql.Identifier(base))
            for key, base in zip(self.keys, bases, strict=True)
        )
        self.connection.execute(
            sql.SQL(
                "create temp table {} on commit drop as"
                " select {}{}, null::text[] as headrace_missing, {} from {} with no data"
            ).format(_PARTIAL, names(self.columns), _EXTRAS, based, self.table.identifier)
        )
        rows = (
            [*self._texts(seq, version), _array(version.missing), *self._key(version.base or "")]
            for seq, version in versions
        )
        self._copy(_PARTIAL, ["headrace_missing", *bases], rows)
        left_out = {name for _, version in versions for name in version.missing}
        found = sql.SQL(", ").join(
            self._found(column, column in left_out) for column in self.columns
        )
        same = self._same_base(bases)
        if self.history:
            same = sql.SQL("{} and t.{}").format(same, sql.Identifier(CURRENT))
        self.connection.execute(
            sql.SQL(
                "insert into {} select {}, p.headrace_seq, p.headrace_at, p.headrace_gone"
                " from {} p left join {} t on {}"
            ).format(ROWS, found, _PARTIAL, self.table.identifier, same)
        )
        self.connection.execute(sql.SQL("drop table {}").format(_PARTIAL))

    def _found(self, column: str, is_left_out: bool) -> sql.Composed:
        name = sql.Identifier(column)
        if not is_left_out:
            return sql.SQL("p.{}").format(name)
        return sql.SQL("case when {} = any(p.headrace_missing) then t.{} else p.{} end").format(
            sql.Literal(column), name, name
        )

    def _same_base(self, bases: Sequence[str]) -> sql.Composed:
        shape = "({}) = ({})" if self.table.keys else "row({})::text = row({})::text"
        return sql.SQL(shape).format(names(self.keys, "t"), names(bases, "p"))

    def _texts(self, seq: int, version: Version) -> Texts:
        """A row for COPY. What neither the message nor its key says is null."""
        given = dict(zip(self.keys, self._key(version.key), strict=True))
        for name, value in version.fields.items():
            column = self.table.columns.get(name)
            if column is not None:
                given[name] = column.of_json(value)
        at = _EPOCH + timedelta(microseconds=version.at_us)
        texts = [given.get(column) for column in self.columns]
        return [*texts, str(seq), at.isoformat(), str(version.is_gone)]

    def _key(self, text: str) -> Texts:
        parts = key_values(text, len(self.keys))
        columns = self.table.columns
        return [columns[key].of_key_part(part) for key, part in zip(self.keys, parts, strict=True)]

    def _copy(self, into: sql.Identifier, more: Sequence[str], rows: Iterable[Texts]) -> None:
        columns = [*self.columns, "headrace_seq", "headrace_at", "headrace_gone", *more]
        query = sql.SQL("copy {} ({}) from stdin").format(into, names(columns))
        with self.connection.cursor() as cursor, cursor.copy(query) as copy:
            for row in rows:
                copy.write_row(row)


def names(columns: Iterable[str], of: str = "") -> sql.Composed:
    prefix = sql.SQL(f"{of}." if of else "")
    return sql.SQL(", ").join(prefix + sql.Identifier(column) for column in columns)


def _array(values: Iterable[str]) -> str:
    escaped = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in escaped) + "}"
