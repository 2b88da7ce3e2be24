"""Rows into a table, exactly once: COPY and a row of the ledger in one transaction."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv
from psycopg import sql

from headrace.backoff import Backoff
from headrace.changes.rejected import Rejected
from headrace.postgres.ledger import Claim, NotYet, SinkError, enter, take_run
from headrace.postgres.origins import origin_name

_RETRY_SECS = Backoff(0.1, 2.0)

# Away, an origin that another session has, a server that has become a standby.
_PASSING = (
    psycopg.OperationalError,
    psycopg.errors.ObjectInUse,
    psycopg.errors.ReadOnlySqlTransaction,
)

Connect = Callable[[str], AbstractContextManager[psycopg.Connection]]


@dataclass(frozen=True)
class SinkTarget:
    """Where rows go. With `keys` a row replaces the one of the same key; without, it is added.

    `origin` marks the rows as ours for logical replication, so that a feed leaves them out.
    """

    url: str
    table: str
    columns: tuple[str, ...]
    keys: tuple[str, ...] = ()
    origin: str = ""
    retry_secs: float = 60.0


@dataclass(frozen=True)
class SinkResult:
    rows: int
    rejected: list[Rejected]
    was_in: bool = False


Load = Callable[[psycopg.Connection], SinkResult]
Reject = Callable[[list[Rejected]], None]


def write(
    target: SinkTarget,
    claim: Claim | None,
    batches: Sequence[pa.RecordBatch],
    reject: Reject | None = None,
    connect: Connect = psycopg.connect,
) -> SinkResult:
    """Write one partition of one batch, retrying while Postgres is unreachable.

    Rows that Postgres refuses are handed to `reject`, which is called once before the rest is
    committed, so that they are safe first; without it the batch fails and names the row. Without
    a claim, every call adds. `connect` may give a session that was used before: it is left as it
    came, or closed by the caller when an error propagates.
    """
    return once(
        target,
        claim,
        lambda connection: _load_all(connection, target, batches, reject),
        connect,
    )


def once(target: SinkTarget, claim: Claim | None, load: Load, connect: Connect) -> SinkResult:
    """Run `load` in a transaction with the claim's row of the ledger, unless it is there already.

    It is retried while Postgres is down. What it raises ends the transaction.
    """
    deadline = time.monotonic() + target.retry_secs
    waits = _RETRY_SECS.waits()
    while True:
        try:
            return _once(target, claim, load, connect)
        except _PASSING as error:
            # A commit whose answer was lost is settled by the ledger on the next try.
            if time.monotonic() > deadline:
                raise SinkError(_sentence(target, error)) from error
        except NotYet as waiting:
            if time.monotonic() > deadline:
                raise SinkError(waiting.sentence) from None
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
            raise SinkError(f"{target.table} does not fit: {error.diag.message_primary}") from error
        time.sleep(next(waits))


def _sentence(target: SinkTarget, error: psycopg.Error) -> str:
    if isinstance(error, psycopg.errors.DiskFull | psycopg.errors.OutOfMemory):
        return f"Postgres has no room for {target.table}: {reason_of(error)}. Nothing is lost."
    return f"Postgres did not take the rows for {target.table}: {reason_of(error)}"


def reason_of(error: psycopg.Error) -> str:
    """What Postgres says, without where in its code it says it."""
    return " ".join(str(error).split("\nCONTEXT")[0].split())


def _once(target: SinkTarget, claim: Claim | None, load: Load, connect: Connect) -> SinkResult:
    with connect(target.url) as connection:
        if claim is not None:
            take_run(connection, claim)
        with connection.transaction():
            written = _load_unless_in(connection, target, claim, load)
        if target.origin and not written.was_in:
            # One session at a time may have it, and the next task may be in another.
            connection.execute("select pg_replication_origin_session_reset()")
        return written


def _load_unless_in(
    connection: psycopg.Connection, target: SinkTarget, claim: Claim | None, load: Load
) -> SinkResult:
    if claim is not None and not enter(connection, claim, can_repeat=bool(target.keys)):
        return SinkResult(0, [], was_in=True)
    if target.origin:
        _set_origin(connection, origin_name(target.origin, claim.partition if claim else 0))
    return load(connection)


def _load_all(
    connection: psycopg.Connection,
    target: SinkTarget,
    batches: Sequence[pa.RecordBatch],
    reject: Reject | None,
) -> SinkResult:
    rejected: list[Rejected] = []
    load = _upsert if target.keys else _append
    rows = sum(
        _load_or_split(connection, target, batch, load, rejected, can_reject=reject is not None)
        for batch in batches
        if batch.num_rows
    )
    if reject is not None:
        reject(rejected)
    return SinkResult(rows, rejected)


def _set_origin(connection: psycopg.Connection, name: str) -> None:
    known = "select 1 from pg_replication_origin where roname = %s"
    if not connection.execute(known, (name,)).fetchone():
        # In a transaction of its own: another writer may be making it too.
        with (
            suppress(psycopg.errors.UniqueViolation),
            psycopg.connect(connection.info.dsn, password=connection.info.password) as other,
        ):
            other.execute("select pg_replication_origin_create(%s)", (name,))
    connection.execute("select pg_replication_origin_session_setup(%s)", (name,))


Loader = Callable[[psycopg.Connection, SinkTarget, pa.RecordBatch], None]


def _load_or_split(
    connection: psycopg.Connection,
    target: SinkTarget,
    batch: pa.RecordBatch,
    load: Loader,
    rejected: list[Rejected],
    *,
    can_reject: bool,
) -> int:
    """Load a batch; if Postgres refuses a value, halve it until the row is found."""
    try:
        with connection.transaction():
            load(connection, target, batch)
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        reason = reason_of(error)
        if not can_reject:
            raise SinkError(f"{target.table} refuses a row: {reason}") from error
        if batch.num_rows == 1:
            rejected.append(Rejected(batch.to_pylist()[0], reason))
            return 0
        half = batch.num_rows // 2
        return sum(
            _load_or_split(connection, target, part, load, rejected, can_reject=True)
            for part in (batch.slice(0, half), batch.slice(half))
        )
    return int(batch.num_rows)


def _append(connection: psycopg.Connection, target: SinkTarget, batch: pa.RecordBatch) -> None:
    _copy(connection, _name(target.table), target.columns, batch)


def _upsert(connection: psycopg.Connection, target: SinkTarget, batch: pa.RecordBatch) -> None:
    """The last row of each key wins, within the batch as between batches."""
    table, columns = _name(target.table), _names(target.columns)
    keys = _names(target.keys)
    connection.execute(
        sql.SQL(
            "create temp table headrace_incoming on commit drop as"
            " select {}, 0::bigint as headrace_order from {} with no data"
        ).format(columns, table)
    )
    numbered = batch.append_column("headrace_order", pa.array(range(batch.num_rows), pa.int64()))
    incoming = sql.Identifier("headrace_incoming")
    _copy(connection, incoming, (*target.columns, "headrace_order"), numbered)
    others = [column for column in target.columns if column not in target.keys]
    action = (
        sql.SQL("update set {}").format(
            sql.SQL(", ").join(
                sql.SQL("{0} = excluded.{0}").format(sql.Identifier(column)) for column in others
            )
        )
        if others
        else sql.SQL("nothing")
    )
    connection.execute(
        sql.SQL(
            "insert into {table} ({columns}) select distinct on ({keys}) {columns} from {incoming}"
            " order by {keys}, headrace_order desc on conflict ({keys}) do {action}"
        ).format(table=table, columns=columns, keys=keys, incoming=incoming, action=action)
    )
    connection.execute("drop table headrace_incoming")


def _copy(
    connection: psycopg.Connection,
    table: sql.Identifier,
    columns: Iterable[str],
    batch: pa.RecordBatch,
) -> None:
    names = list(columns)
    query = sql.SQL("copy {} ({}) from stdin (format csv)").format(table, _names(names))
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        copy.write(_csv(batch.select(names)))


def _csv(batch: pa.RecordBatch) -> bytes:
    """CSV as COPY reads it: an empty field is NULL, an empty string is quoted."""
    plain = [_as_text(column) for column in batch.columns]
    out = io.BytesIO()
    table = pa.Table.from_arrays(plain, names=batch.schema.names)
    pa.csv.write_csv(table, out, pa.csv.WriteOptions(include_header=False))
    return out.getvalue()


def _as_text(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_nested(kind):
        write_value: Callable[[Any], str] = _literal
    elif any(is_kind(kind) for is_kind in _WITHOUT_CSV):
        write_value = _plain
    else:
        return column
    texts = [None if v is None else write_value(v) for v in column.to_pylist()]
    return pa.array(texts, pa.string())


# What Arrow does not write into CSV, or writes as a bare number of microseconds.
_WITHOUT_CSV = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_duration)


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return _interval(value) if isinstance(value, timedelta) else str(value)


def _interval(value: timedelta) -> str:
    """In hours: to Postgres a day of an interval is not 24 hours."""
    micros = value // timedelta(microseconds=1)
    secs, micros_left = divmod(abs(micros), 1_000_000)
    sign = "-" if micros < 0 else ""
    return f"{sign}{secs // 3600}:{secs // 60 % 60:02}:{secs % 60:02}.{micros_left:06}"


def _literal(value: Any) -> str:
    """A list as a Postgres array literal."""
    if not isinstance(value, list):
        raise SinkError("Only lists and plain values can be written; turn structs into JSON first.")
    return "{" + ",".join("NULL" if item is None else _quoted(_plain(item)) for item in value) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _name(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split("."))


def _names(columns: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(column) for column in columns)
