"""Versions of rows, as changes say them, with the values of a table's columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.changes.events import Fields, NotAChange, Put, Row
from headrace.changes.folding import Version
from headrace.changes.row_keys import key_values
from headrace.changes.rules import CannotApply
from headrace.spark.applied_lake.arrow_values import key_part_of, value_of
from headrace.spark.applied_lake.keyed_tables import Key

Values = dict[str, Any]


class RowValues:
    """Of a table with these columns, or one that will have them. A column of None has no type
    yet, and takes any value."""

    def __init__(self, columns: Mapping[str, pa.Field | None], keys: Sequence[str]) -> None:
        self._columns = columns
        self._keys = tuple(keys)

    def check(self, change: Row) -> None:
        """NotAChange if the table cannot hold what the change says."""
        assert change.key is not None, "keys are known before"
        self.key(change.key)
        if isinstance(change, Put):
            if change.was is not None:
                self.key(change.was)
            self.values(change.fields)
            self._check_required(change)
            for key in self._keys:
                if change.fields.get(key) == b"null":
                    raise NotAChange(f"the key has no value for {key}")

    def _check_required(self, change: Put) -> None:
        given = {name for name, value in change.fields.items() if value != b"null"}
        given.update(self._keys, change.unchanged)
        for name, field in self._columns.items():
            if field is not None and not field.nullable and name not in given:
                raise NotAChange(f"{name} has no value, and the table requires one")

    def key(self, text: str) -> Key:
        """The key's values."""
        try:
            parts = key_values(text, len(self._keys))
        except ValueError as error:
            raise NotAChange(str(error)) from None
        return tuple(
            part if field is None else key_part_of(name, part, field.type)
            for name, part, field in (
                (name, part, self._columns.get(name))
                for name, part in zip(self._keys, parts, strict=True)
            )
        )

    def values(self, fields: Fields) -> Values:
        """Those of columns that the table has."""
        found: Values = {}
        for name, value in fields.items():
            field = self._columns.get(name)
            if field is not None:
                found[name] = value_of(name, value, field.type)
        return found

    def row(self, version: Version, base: Values | None) -> Values:
        """A row; what the version leaves out is as in `base`."""
        kept = {name: (base or {}).get(name) for name in version.missing}
        for name, value in kept.items():
            field = self._columns.get(name)
            if value is None and field is not None and not field.nullable:
                raise CannotApply(
                    f"The row {version.key!r} has no value for {name}, which the table requires: "
                    "its change leaves it out, and there was no such row before."
                )
        key = dict(zip(self._keys, self.key(version.key), strict=True))
        return kept | key | self.values(version.fields)


def table_of(rows: Iterable[Values], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def keys_table(keys: Collection[Key], names: Sequence[str], schema: pa.Schema) -> pa.Table:
    kinds = pa.schema([pa.field(name, schema.field(name).type) for name in names])
    return table_of((dict(zip(names, key, strict=True)) for key in keys), kinds)
