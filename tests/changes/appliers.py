"""Writers of changes to tables of each kind, driven alike: each call is a batch."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from headrace.changes.events import ColumnShape
from headrace.changes.rejected import Rejected
from headrace.changes.rules import Rules, qualified
from headrace.postgres.apply.registry import prepare as prepare_registry
from headrace.postgres.apply.writer import apply as apply_to_postgres
from headrace.postgres.ledger import Claim, prepare
from headrace.postgres.sink import SinkTarget
from headrace.spark.applied_lake import writer as lake_writer
from headrace.spark.applied_lake.column_types import arrow_schema
from headrace.spark.applied_lake.keyed_tables import BatchId, Lake, LakeFormat
from headrace.spark.applied_lake.table_batch import Batch
from headrace.spark.applied_lake.writer import Known

STREAM = "/postgres/items"


def put(key: str, value: dict[str, Any], operation: str = "upsert", **headers: Any) -> Any:
    return {
        "type": "items", "key": key, "value": value,
        "headers": {"operation": operation, **headers},
    }  # fmt: skip


def gone(key: str, **headers: Any) -> Any:
    return {"type": "items", "key": key, "headers": {"operation": "delete", **headers}}


def control(name: str, **more: Any) -> Any:
    return {"headers": {"control": name}, **more}


def schema(*columns: str, keys: Sequence[str] = ("id",), table: str = "items") -> Any:
    """A schema message; a column is its name and its type."""
    named = [column.split(" ", 1) for column in columns]
    described = [{"name": name, "type": kind, "key": name in keys} for name, kind in named]
    return control("schema", type=table, value={"columns": described})


def envelope(op: str, before: Any = None, after: Any = None, ts_ms: int = 0) -> Any:
    source = {"schema": "public", "table": "items", "ts_ms": ts_ms}
    return {"op": op, "before": before, "after": after, "source": source, "ts_ms": ts_ms}


RESET = control("reset")


class Applier(ABC):
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.batch = 0
        self.rejected: list[Rejected] = []

    def __call__(
        self, *messages: Any, stream: str = STREAM, batch: int | None = None, **more: Any
    ) -> Any:
        return self.batches([(stream, messages)], batch=batch, **more)

    def batches(
        self,
        streams: Sequence[tuple[str, Sequence[Any]]],
        batch: int | None = None,
        is_snapshot: bool = False,
    ) -> Any:
        if batch is None:
            batch = self.batch
            self.batch += 1
        rows = [
            (stream, f"{batch:016}_{number:016}", _bytes(message), is_snapshot)
            for stream, messages in streams
            for number, message in enumerate(messages)
        ]
        columns = [pa.array(list(c)) for c in zip(*rows, strict=True)]
        names = ["stream", "offset", "value", "is_snapshot"]
        return self.apply(pa.RecordBatch.from_arrays(columns, names=names), batch)

    @abstractmethod
    def apply(self, messages: pa.RecordBatch, batch: int) -> Any: ...

    @abstractmethod
    def create(self, *columns: str, keys: Sequence[str] = ("id",), table: str = "items") -> None:
        """Make a table; a column is its name and its type in Postgres."""

    @abstractmethod
    def add_column(self, column: str, table: str = "items") -> None: ...

    @abstractmethod
    def set(self, column: str, value: Any, table: str = "items") -> None:
        """Of all rows, as somebody else would."""

    @abstractmethod
    def columns(self, table: str = "items") -> list[str]: ...

    @abstractmethod
    def dicts(self, table: str = "items") -> list[dict[str, Any]]: ...

    def rows(self, table: str = "items", *columns: str) -> list[tuple[Any, ...]]:
        """In the order of the first column."""
        names = columns or self.columns(table)
        return sorted(tuple(row[name] for name in names) for row in self.dicts(table))

    @property
    def reasons(self) -> list[str]:
        return [each.reason for each in self.rejected]


class PostgresApplier(Applier):
    def __init__(self, url: str, rules: Rules) -> None:
        super().__init__(rules)
        self.url = url
        prepare(url)
        prepare_registry(url)

    def apply(self, messages: pa.RecordBatch, batch: int) -> Any:
        return apply_to_postgres(
            SinkTarget(self.url, "the tables", (), retry_secs=5),
            self.rules,
            "w",
            Claim("w", "query", 0, batch, "run", ""),
            [messages],
            self.rejected.extend,
        )

    def create(self, *columns: str, keys: Sequence[str] = ("id",), table: str = "items") -> None:
        parts = [*(f'"{name}" {kind}' for name, kind in (each.split(" ", 1) for each in columns))]
        self._run(f'create table "{table}" ({", ".join(parts)}, primary key ({", ".join(keys)}))')

    def add_column(self, column: str, table: str = "items") -> None:
        self._run(f'alter table "{table}" add column {column}')

    def set(self, column: str, value: Any, table: str = "items") -> None:
        self._run(f'update "{table}" set "{column}" = {value!r}')

    def columns(self, table: str = "items") -> list[str]:
        with psycopg.connect(self.url) as connection:
            return [each.name for each in self._all(connection, table).description or ()]

    def dicts(self, table: str = "items") -> list[dict[str, Any]]:
        with psycopg.connect(self.url) as connection:
            connection.execute("set timezone = utc")
            found = self._all(connection, table)
            names = [each.name for each in found.description or ()]
            return [dict(zip(names, row, strict=True)) for row in found]

    def _all(self, connection: psycopg.Connection, table: str) -> psycopg.Cursor[Any]:
        place = sql.Identifier(*qualified(table).split(".", 1))
        return connection.execute(sql.SQL("select * from {}").format(place))

    def _run(self, query: str) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(query.encode())


class LakeApplier(Applier):
    """`known` is what the driver would know before each batch."""

    def __init__(self, root: Path, format_: LakeFormat, rules: Rules, writer: str = "w") -> None:
        super().__init__(rules)
        self.lake = Lake(root, format_)
        self.lake.make_ready()
        self.writer, self.query = writer, "query"
        self.known = {0: Known({}, {})}

    def apply(self, messages: pa.RecordBatch, batch: int) -> Any:
        before = self.known[max(number for number in self.known if number <= batch)]
        now = Batch(
            BatchId(self.writer, self.query, batch), self.rules, time.time_ns() // 1000, "state"
        )
        done = lake_writer.apply(self.lake, now, before, [messages], self.rejected.extend)
        self.known[batch + 1] = Known(before.streams | done.streams, before.marks | done.marks)
        return done

    def create(self, *columns: str, keys: Sequence[str] = ("id",), table: str = "items") -> None:
        self.lake.table(table).create(_arrow(columns), keys)

    def add_column(self, column: str, table: str = "items") -> None:
        self.lake.table(table).add_columns(_arrow([column]))

    def set(self, column: str, value: Any, table: str = "items") -> None:
        from headrace.spark.applied_lake.keyed_tables import Replacement
        from headrace.spark.applied_lake.row_values import keys_table, table_of

        now = self.version(table)
        rows = [row | {column: value} for row in self.dicts(table)]
        change = Replacement(
            now.keys, table_of(rows, now.schema), keys_table([], now.keys, now.schema)
        )
        now.replace(BatchId("somebody", "else", 0), change)

    def version(self, table: str = "items") -> Any:
        found = self.lake.table(table).open()
        assert found is not None, f"there is no table {table}"
        return found

    def columns(self, table: str = "items") -> list[str]:
        return list(self.version(table).schema.names)

    def dicts(self, table: str = "items") -> list[dict[str, Any]]:
        schema, _, name = qualified(table).partition(".")
        if self.lake.format == "delta":
            from deltalake import DeltaTable

            read = DeltaTable(str(self.lake.root / schema / name)).to_pyarrow_table()
        else:
            from pyiceberg.catalog.sql import SqlCatalog

            catalog = SqlCatalog("headrace", uri=f"sqlite:///{self.lake.root}/catalog.db")
            read = catalog.load_table((schema, name)).scan().to_arrow()
            catalog.engine.dispose()
        return [{key: _utc(value) for key, value in row.items()} for row in read.to_pylist()]


def _arrow(columns: Sequence[str]) -> pa.Schema:
    named = (column.split(" ", 1) for column in columns)
    return arrow_schema([ColumnShape(name, kind) for name, kind in named])


def _utc(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value


def _bytes(message: Any) -> bytes:
    return message if isinstance(message, bytes) else json.dumps(message).encode()


def again(applier: LakeApplier, **changes: Any) -> LakeApplier:
    """A process that starts again with what the driver had noted."""
    other = LakeApplier(applier.lake.root, applier.lake.format, applier.rules, applier.writer)
    other.known, other.batch = dict(applier.known), applier.batch
    for name, value in changes.items():
        setattr(other, name, value)
    return other
