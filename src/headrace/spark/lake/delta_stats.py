"""What Delta's log says of a file's columns, so that readers skip files: least, greatest, nulls.

A bound may be wider than what is in the file and never narrower. A column without bounds is always
read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

_TEXT_CHARS_MAX: Final = 32  # as Spark cuts them: values may be megabytes
_LAST_CHAR: Final = "\U0010ffff"


def delta_stats(table: pa.Table) -> str:
    """The statistics of the rows of one file, as JSON."""
    nulls: dict[str, int] = {}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for name, column in _plain_columns(table):
        nulls[name] = column.null_count
        low, high = _bounds(column)
        if low is not None:
            least[name] = low
        if high is not None:
            greatest[name] = high
    found = {"numRecords": table.num_rows, "minValues": least, "maxValues": greatest}
    return json.dumps({**found, "nullCount": nulls})


def _plain_columns(table: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not types.is_nested(column.type):
            yield name, column


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    kind = column.type
    if types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        return None, None  # to some readers NaN is the greatest number, to others none
    comparable = (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
    )
    if not comparable:
        return None, None
    found = pc.min_max(column).as_py()
    return _least(found["min"]), _greatest(found["max"])


def _least(value: Any) -> Any:
    return value[:_TEXT_CHARS_MAX] if isinstance(value, str) else _plain(value)


def _greatest(value: Any) -> Any:
    """Of a text that is cut: something that comes after every text that begins so."""
    if not isinstance(value, str) or len(value) <= _TEXT_CHARS_MAX:
        return _plain(value)
    if value[_TEXT_CHARS_MAX] == _LAST_CHAR:
        return None
    return value[:_TEXT_CHARS_MAX] + _LAST_CHAR


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        zone = "Z" if value.tzinfo is not None else ""
        return value.strftime("%Y-%m-%dT%H:%M:%S.%f") + zone
    return value.isoformat() if isinstance(value, date) else value
