"""What the tests of the data source say often; no session needed."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from typing import Any

import httpx
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from headrace.spark.sources.streams import HeadraceSource
from headrace.spark.streams.columns import DEFAULT_SCHEMA
from headrace.spark.streams.stream_reader import StreamReader

JSON = "application/json"
ROOT = "/v1/stream"
_TYPES = {"string": StringType(), "binary": BinaryType(), "long": LongType()}


def schema_of(columns: str) -> StructType:
    """`name type, name type` as a schema; Spark's own parser needs a session."""
    pairs = (column.split() for column in columns.split(","))
    return StructType([StructField(name, _TYPES[kind]) for name, kind in pairs])


SCHEMA = schema_of(DEFAULT_SCHEMA)
TEXT_SCHEMA = schema_of("stream string, value string, offset string")


def put(http: httpx.Client, name: str, *messages: bytes, content_type: str = JSON) -> str:
    """Create a stream and append each message by itself; its tail."""
    headers = {"Content-Type": content_type}
    answer = http.put(f"{ROOT}/{name}", headers=headers)
    assert answer.status_code in (200, 201), answer.text
    tail = str(answer.headers["Stream-Next-Offset"])
    for message in messages:
        tail = post(http, name, message, content_type=content_type)
    return tail


def post(http: httpx.Client, name: str, body: bytes, content_type: str = JSON) -> str:
    answer = http.post(f"{ROOT}/{name}", content=body, headers={"Content-Type": content_type})
    assert answer.status_code == 204, answer.text
    return str(answer.headers["Stream-Next-Offset"])


def stored(http: httpx.Client, name: str) -> list[Any]:
    """Every message of a JSON stream."""
    offset, messages = "-1", []
    while True:
        answer = http.get(f"{ROOT}/{name}", params={"offset": offset})
        assert answer.status_code == 200, answer.text
        messages += answer.json()
        offset = answer.headers["Stream-Next-Offset"]
        if "Stream-Up-To-Date" in answer.headers:
            return messages


def source(http: httpx.Client, **options: Any) -> HeadraceSource:
    given = {name: str(value) for name, value in options.items()}
    return HeadraceSource({"url": str(http.base_url), **given})


def stream_reader(http: httpx.Client, schema: StructType = SCHEMA, **options: Any) -> StreamReader:
    reader = source(http, **options).streamReader(schema)
    assert isinstance(reader, StreamReader)
    _readers.append(reader)
    return reader


_readers: list[StreamReader] = []


def stop_readers() -> None:
    """Let go of the connections of every reader made here."""
    while _readers:
        _readers.pop().stop()


def shipped(value: Any) -> Any:
    """As it arrives in another process."""
    return pickle.loads(pickle.dumps(value))


def read_all(reader: Any, partitions: Iterable[Any]) -> list[dict[str, Any]]:
    """Every row, read as tasks do: from partitions and a reader that were pickled."""
    rows: list[dict[str, Any]] = []
    for partition in partitions:
        for batch in shipped(reader).read(shipped(partition)):
            rows += batch.to_pylist()
    return rows


def batch_rows(
    http: httpx.Client, schema: StructType = SCHEMA, **options: Any
) -> list[dict[str, Any]]:
    reader = source(http, **options).reader(schema)
    return read_all(reader, reader.partitions())


def same(offset: Any) -> Any:
    """An offset as Spark gives it back: through JSON text."""
    return json.loads(json.dumps(offset))


def next_batch(
    reader: StreamReader, start: Any, limit: Any = None
) -> tuple[Any, list[dict[str, Any]]]:
    """One micro-batch: its end, and its rows."""
    end = same(reader.latestOffset(start, limit or reader.getDefaultReadLimit()))
    return end, read_all(reader, reader.partitions(start, end)) if end != start else []
