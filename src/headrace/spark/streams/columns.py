"""Messages as Arrow columns: from a framed body to a record batch without a loop over messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructType

from headrace.protocol import framed

DEFAULT_SCHEMA: Final = "stream string, value binary, offset string, content_type string"
_TEXT: Final = ("stream", "offset", "content_type")
_BATCH_ROWS: Final = 10_000  # Spark's own default for Arrow batches
_BATCH_BYTES: Final = 4 * 1024 * 1024
_DIGITS: Final = 16


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
        strides = np.frombuffer(frame.strides, dtype="<u4").astype(np.int64)
        ends = np.cumsum(strides)
        makers: dict[str, Callable[[pa.DataType], pa.Array]] = {
            "stream": lambda _: pa.repeat(pa.scalar(stream), count),
            "content_type": lambda _: pa.repeat(pa.scalar(content_type), count),
            "offset": lambda _: _tokens(frame.start, ends),
            "value": lambda kind: _cast(
                stream, _values(strides, ends, frame.separator_bytes, frame.data), kind
            ),
        }
        return self._batch(makers)

    def of_message(
        self, stream: str, content_type: str, value: bytes, offset: str
    ) -> pa.RecordBatch:
        """One message that came by itself."""
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


def _values(
    strides: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], separator: int, data: memoryview
) -> pa.Array:
    count = len(strides)
    values = np.frombuffer(data, dtype=np.uint8)
    starts = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(strides - separator, out=starts[1:], dtype=np.int32)
    if separator and count:
        keep = np.ones(len(values), dtype=bool)
        keep[ends - 1] = False
        values = values[keep]
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _tokens(start: tuple[int, int], ends: np.ndarray[Any, Any]) -> pa.Array:
    """The offset after each message, `%016d_%016d`, as one buffer of digits."""
    count = len(ends)
    text = np.full((count, 2 * _DIGITS + 1), ord("_"), dtype=np.uint8)
    _write_digits(text[:, :_DIGITS], start[0] + np.arange(1, count + 1, dtype=np.int64))
    _write_digits(text[:, _DIGITS + 1 :], start[1] + ends)
    starts = np.arange(count + 1, dtype=np.int32) * text.shape[1]
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(text.ravel())]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _write_digits(target: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any]) -> None:
    for column in range(_DIGITS - 1, -1, -1):
        numbers, digit = np.divmod(numbers, 10)
        target[:, column] = digit + ord("0")


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


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches worth sending: many small streams make few large ones."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield _joined(held)
            held, rows, size = [], 0, 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
