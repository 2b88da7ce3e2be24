"""The Arrow type of a column, as its source describes it in Postgres's words.

What a lake has no type for is text, as Postgres prints it: json, uuid, enums, intervals, a numeric
without a precision.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from headrace.changes.events import ColumnShape

UTC_TIME: Final = pa.timestamp("us", "UTC")
_LOCAL_TIME: Final = pa.timestamp("us")
_DECIMAL: Final = re.compile(r"(?:numeric|decimal)\((\d+)(?:,\s*(\d+))?\)")
_DECIMAL_DIGITS_MAX: Final = 38
_MODIFIER: Final = re.compile(r"\s*\([^)]*\)")
_TYPES: Final = {
    "smallint": pa.int32(), "int2": pa.int32(), "integer": pa.int32(), "int": pa.int32(),
    "int4": pa.int32(), "bigint": pa.int64(), "int8": pa.int64(),
    "real": pa.float32(), "float4": pa.float32(),
    "double precision": pa.float64(), "float8": pa.float64(),
    "boolean": pa.bool_(), "bool": pa.bool_(), "bytea": pa.binary(), "date": pa.date32(),
    "timestamp without time zone": _LOCAL_TIME, "timestamp": _LOCAL_TIME,
    "timestamp with time zone": UTC_TIME, "timestamptz": UTC_TIME,
}  # fmt: skip


def arrow_type(name: str) -> pa.DataType:
    """An array is a list of its elements; Postgres does not say how many dimensions it has."""
    if name.endswith("[]"):
        return pa.list_(arrow_type(name.removesuffix("[]")))
    decimal = _DECIMAL.fullmatch(name)
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        fits = 1 <= precision <= _DECIMAL_DIGITS_MAX and scale <= precision
        return pa.decimal128(precision, scale) if fits else pa.string()
    return _TYPES.get(_MODIFIER.sub("", name), pa.string())


def arrow_schema(columns: Sequence[ColumnShape]) -> pa.Schema:
    return pa.schema([pa.field(each.name, arrow_type(each.type)) for each in columns])
