"""Row messages of pgoutput decoded many at a time: a column of all of them in a few steps.

Messages of one kind about one table have the same fields in the same order. So the places of a
field in all of them follow from where the field before it ended, which numpy computes for all at
once, and Arrow makes the JSON. What comes out is what `decode_row` says of each message, and takes
a tenth of the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.postgres.pgoutput import Relation
from headrace.postgres.value_columns import encode_column
from headrace.postgres.values import Encoder

KIND_BYTES: Final = 6
"""What tells kinds of messages apart: insert, update or delete, the table, which tuple is first."""

_NULL, _TEXT = ord("n"), ord("t")  # what is neither was not sent
_LENGTH_BYTES = 4
_OPS: Final = {b"I": "insert", b"U": "update", b"D": "delete"}

Places = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Fields = list[pa.Array]  # `"name":value` of each column, null where it was not sent


@dataclass
class RowGroup:
    """Messages of one kind, and the table as it was described before them."""

    index: int
    kind: bytes
    relation: Relation
    messages: list[bytes] = field(default_factory=list)

    @property
    def op(self) -> str:
        return _OPS[self.kind[:1]]

    @property
    def has_old_row(self) -> bool:
        return self.kind[5:6] == b"O"

    @property
    def has_old_key(self) -> bool:
        return self.kind[5:6] == b"K"


class RowColumns(NamedTuple):
    """As in a `Change`: key, value and old row as JSON text, and the names of unsent columns."""

    key: pa.Array
    value: pa.Array
    old: pa.Array
    unchanged: list[list[str]] | None  # None: every row has all columns


def decode_rows(group: RowGroup) -> RowColumns:
    rows = _Rows(group)
    first = rows.next_tuple()
    nothing = pa.nulls(rows.count, pa.string())
    known_by = rows.joined(first) if group.has_old_row else rows.key_of(first)
    if group.op == "delete":
        return RowColumns(rows.key_of(first), nothing, known_by, None)
    if not (group.has_old_row or group.has_old_key):
        return RowColumns(rows.key_of(first), rows.joined(first), nothing, rows.unsent(first))
    # A large value that did not change is only in the old tuple, which may be the key alone.
    rows.skip_mark()
    old_columns = range(len(first)) if group.has_old_row else group.relation.keys
    new = [
        pc.coalesce(now, was) if number in old_columns else now
        for number, (was, now) in enumerate(zip(first, rows.next_tuple(), strict=True))
    ]
    return RowColumns(rows.key_of(new), rows.joined(new), known_by, rows.unsent(new))


class _Rows:
    """Reads the tuples of all messages of a group, one after the other."""

    def __init__(self, group: RowGroup) -> None:
        self.count = len(group.messages)
        self._relation = group.relation
        # Behind the last field a length is looked for, too.
        self._data = b"".join([*group.messages, bytes(1 + _LENGTH_BYTES)])
        self._bytes = np.frombuffer(self._data, np.uint8)
        sizes = np.fromiter(map(len, group.messages), np.int64, self.count)
        self._at: Places = np.cumsum(sizes) - sizes + KIND_BYTES

    def skip_mark(self) -> None:
        """Pass over the byte before a second tuple."""
        self._at = self._at + 1

    def next_tuple(self) -> Fields:
        self._at = self._at + 2  # the number of columns, which is that of the relation
        columns = zip(self._relation.prefixes, self._relation.encoders, strict=True)
        return [self._field(prefix, encode) for prefix, encode in columns]

    def _field(self, prefix: str, encode: Encoder) -> pa.Array:
        kinds = self._bytes[self._at]
        is_text = kinds == _TEXT
        begins = self._at + 1 + _LENGTH_BYTES * is_text
        ends = begins + np.where(is_text, self._length(self._at + 1), 0)
        self._at = ends
        found = _concat(prefix, encode_column(encode, self._texts(begins, ends, is_text)))
        is_null = kinds == _NULL
        return pc.if_else(is_null, f"{prefix}null", found) if is_null.any() else found

    def _length(self, at: Places) -> Places:
        length = self._bytes[at].astype(np.int64)
        for place in range(1, _LENGTH_BYTES):
            length = length << 8 | self._bytes[at + place]
        return length

    def _texts(self, begins: Places, ends: Places, is_text: Flags) -> pa.Array:
        """What is between the places, without copying it twice: as every other value of an array
        whose values are these and the gaps between them."""
        offsets = np.empty(2 * self.count, np.int32)
        offsets[0::2], offsets[1::2] = begins, ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._data)]
        with_gaps = pa.Array.from_buffers(pa.binary(), 2 * self.count - 1, buffers)
        wanted = pa.array(np.arange(0, 2 * self.count, 2), mask=~is_text)
        return with_gaps.take(wanted).cast(pa.string())  # which checks that it is UTF-8

    def joined(self, fields: Fields) -> pa.Array:
        """A JSON object of the fields that were sent."""
        if not fields:
            return pa.repeat("{}", self.count)
        if not any(each.null_count for each in fields):
            return _concat("{", pc.binary_join_element_wise(*fields, ","), "}")
        # Arrow 26 drops a row whose parts are all skipped, so the first part never is.
        listed = pc.binary_join_element_wise(
            pa.repeat("", self.count), *fields, ",", null_handling="skip"
        )
        return _concat("{", pc.utf8_slice_codeunits(listed, 1), "}")

    def key_of(self, fields: Fields) -> pa.Array:
        """The key as a JSON object; null if there is none, or a part was not sent."""
        parts = [fields[number] for number in self._relation.keys]
        if not parts:
            return pa.nulls(self.count, pa.string())
        return _concat("{", pc.binary_join_element_wise(*parts, ","), "}")

    def unsent(self, fields: Fields) -> list[list[str]] | None:
        """The names of the columns that each row lacks."""
        lacking = {
            column.name: each.is_null().to_pylist()
            for column, each in zip(self._relation.columns, fields, strict=True)
            if each.null_count
        }
        if not lacking:
            return None
        rows = zip(*lacking.values(), strict=True)
        return [[name for name, lacks in zip(lacking, row, strict=True) if lacks] for row in rows]


def _concat(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")
