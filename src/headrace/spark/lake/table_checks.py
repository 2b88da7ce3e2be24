"""Whether rows fit a table that is there: its place, its format, its partitions, its columns.

Both formats take a file of any schema without a word, and fail when it is read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import types

from headrace.spark.lake.parquet_files import LakeError
from headrace.spark.places import Place, names_in


def check_delta_place(path: Place) -> None:
    # The Delta library decodes such a part of a path in one place and not in another.
    if re.search("%[0-9A-Fa-f]{2}", str(path)):
        raise LakeError(f"{path} cannot hold a Delta table: name it without % before two digits.")
    if any(name.endswith(".metadata.json") for name in names_in(path / "metadata")):
        raise LakeError(_other_format(path, "an Iceberg", "delta"))


def check_iceberg_place(path: Path) -> None:
    if set("?#") & set(str(path.resolve())):
        raise LakeError(f"{path} cannot hold an Iceberg table: name it without ? and #.")
    if (path / "_delta_log").is_dir():
        raise LakeError(_other_format(path, "a Delta", "iceberg"))


def _other_format(path: Place, has: str, wanted: str) -> str:
    return (
        f"{path} holds {has} table, and {wanted} was asked for. Keep its format, or name another "
        "table."
    )


def check_partitions(path: Place, has: Sequence[str], given: Sequence[str]) -> None:
    if list(has) != list(given):
        raise LakeError(
            f"{path} is partitioned by {list(has)}, not by {list(given)}. Use the same "
            "partitions, or another table."
        )


def check_columns(path: Place, has: pa.Schema, given: pa.Schema, int_bits_min: int = 8) -> None:
    """The same columns of the same types, in any order."""
    there = {field.name: type_name(field.type, int_bits_min) for field in has}
    here = {field.name: type_name(field.type, int_bits_min) for field in given}
    for name, kind in here.items():
        if name not in there:
            raise LakeError(
                f"The column {name} ({kind}) is not in the table {path}, which has "
                f"{', '.join(there)}. Leave it out, or name another table."
            )
        if kind != there[name]:
            raise LakeError(
                f"The column {name} is {kind} here, and {there[name]} in the table {path}. Write "
                f"it as {there[name]}, or name another table."
            )
    for name, kind in there.items():
        if name not in here:
            raise LakeError(
                f"The column {name} ({kind}) of the table {path} is missing here. Add it, or name "
                "another table."
            )


def type_name(kind: pa.DataType, int_bits_min: int = 8) -> str:
    """A type without what makes no difference in a file: widths of offsets, nulls, inner names."""

    def inner(part: pa.DataType) -> str:
        return type_name(part, int_bits_min)

    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "string"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "binary"
    if types.is_signed_integer(kind):
        return f"int{max(kind.bit_width, int_bits_min)}"
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp without a zone"
    if types.is_list(kind) or types.is_large_list(kind):
        return f"list of {inner(kind.value_type)}"
    if types.is_map(kind):
        return f"map of {inner(kind.key_type)} to {inner(kind.item_type)}"
    if types.is_struct(kind):
        return f"struct of {', '.join(f'{field.name} {inner(field.type)}' for field in kind)}"
    return str(kind)
