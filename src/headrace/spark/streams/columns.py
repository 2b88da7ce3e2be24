"""Messages as Arrow columns: from a framed body to a record batch without a loop over messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StringType, StructType

from headrace.protocol import framed

DEFAULT_SCHEMA: Final = "stream string, value binary, offset string, content_type string"
_TEXT: Final = ("stream", "offset", "content_type")
_BATCH_ROWS: Final = 10_000  # Spark's own default for Arrow batches
_BATCH_BYTES: Final = 4 * 1024 * 1024
_FOUR_DIGITS: Final = np.array([b"%04d" % number for number in range(10_000)], dtype="S4")
_HALVES: Final = (*(f"messages{n}" for n in range(4)), "_", *(f"bytes{n}" for n in range(4)))
# An offset, `%016d_%016d`, as fields of four digits each.
_TOKEN: Final = np.dtype([(name, "u1" if name == "_" else "S4") for name in _HALVES])


class BadColumn(ValueError):
    """A column the source cannot give, or a value that its type cannot hold."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of the columns asked for: exactly what Spark compares with."""
    fields = []
    for field in schema.fields:
        if field.name in _TEXT and field.dataType == StringType():
            fields.append(pa.field(field.name, pa.string()))
        elif field.name == "value" and field.dataType in (StringType(), BinaryType()):
            kind = pa.string() if field.dataType == StringType() else pa.binary()
            fields.append(pa.field("value", kind))
        else:
            raise BadColumn(
                f"The data source headrace has no column {field.name} "
                f"{field.dataType.simpleString()}; it gives {DEFAULT_SCHEMA}, and value as string."
            )
    return pa.schema(fields)


class Columns:
    """Makes record batches of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def of_frame(self, stream: str, content_type: str, body: bytes) -> pa.RecordBatch:
        frame = framed.decode(body)
        count = frame.message_count
        ends = np.cumsum(np.frombuffer(frame.strides, dtype="<u4"), dtype=np.int64)
        makers: dict[str, Callable[[pa.DataType], pa.Array]] = {
            "stream": lambda _: pa.repeat(pa.scalar(stream), count),
            "content_type": lambda _: pa.repeat(pa.scalar(content_type), count),
            "offset": lambda _: _tokens(frame.start, ends),
            "value": lambda kind: _cast(
                stream, _values(ends, frame.separator_bytes, frame.data), kind
            ),
        }
        return self._batch(makers)

    def of_message(
        self, stream: str, content_type: str, value: bytes, offset: str
    ) -> pa.RecordBatch:
        """A single message."""
        given: dict[str, Any] = {
            "stream": stream, "content_type": content_type, "value": value, "offset": offset
        }  # fmt: skip

        def maker(name: str) -> Callable[[pa.DataType], pa.Array]:
            if name == "value":
                return lambda kind: _cast(stream, pa.array([value], pa.binary()), kind)
            return lambda kind: pa.array([given[name]], kind)

        return self._batch({name: maker(name) for name in given})

    def _batch(self, makers: dict[str, Callable[[pa.DataType], pa.Array]]) -> pa.RecordBatch:
        arrays = [makers[field.name](field.type) for field in self.schema]
        return pa.record_batch(arrays, schema=self.schema)


def _values(ends: np.ndarray[Any, Any], separator: int, data: memoryview) -> pa.Array:
    starts = np.zeros(len(ends) + 1, dtype=np.int32)
    starts[1:] = ends
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(data)]
    values = pa.Array.from_buffers(pa.binary(), len(ends), buffers)
    return pc.binary_slice(values, 0, -separator) if separator else values


def _tokens(start: tuple[int, int], ends: np.ndarray[Any, Any]) -> pa.Array:
    """The offset after each message, `%016d_%016d`, as one buffer of digits."""
    count = len(ends)
    text = np.empty(count, dtype=_TOKEN)
    _write_digits(text, "messages", start[0] + np.arange(1, count + 1, dtype=np.int64))
    text["_"] = ord("_")
    _write_digits(text, "bytes", start[1] + ends)
    starts = np.arange(count + 1, dtype=np.int32) * _TOKEN.itemsize
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(text.view(np.uint8))]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _write_digits(text: np.ndarray[Any, Any], half: str, numbers: np.ndarray[Any, Any]) -> None:
    """Sixteen digits, four at a time from the last; the first eight are mostly the same in all."""
    for place in (3, 2):
        numbers, four = np.divmod(numbers, 10_000)
        text[f"{half}{place}"] = _FOUR_DIGITS[four]
    if len(numbers) and numbers[0] == numbers[-1]:
        numbers = numbers[:1]
    for place in (1, 0):
        numbers, four = np.divmod(numbers, 10_000)
        text[f"{half}{place}"] = _FOUR_DIGITS[four]


def _cast(stream: str, values: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == pa.binary():
        return values
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        raise BadColumn(
            f"The stream {stream} holds bytes that are not UTF-8, and value was asked for as "
            "string. Read it as binary."
        ) from None


def gathered(
    batches: Iterator[pa.RecordBatch],
    rows_min: int = _BATCH_ROWS,
    bytes_min: int = _BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The same rows in batches worth sending: many small streams make few large ones."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= rows_min or size >= bytes_min:
            yield _joined(held)
            held, rows, size = [], 0, 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
