"""Versions of rows into a table: as the rows are now, or with every version that was (SCD type 2).

One call is one segment of changes between two changes of shape. It reads the table as the changes
before it left it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
from psycopg import sql

from headrace.changes.folding import Version
from headrace.changes.rules import CURRENT, VALID_FROM, VALID_TO
from headrace.postgres.apply.staged_rows import AT, IS_GONE, ROWS, SEQ, StagedVersions, names
from headrace.postgres.apply.target_tables import TargetTable

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HISTORY: Final = {
    "valid_from": sql.Identifier(VALID_FROM),
    "valid_to": sql.Identifier(VALID_TO),
    "current": sql.Identifier(CURRENT),
}


def merge_current(
    connection: psycopg.Connection,
    table: TargetTable,
    columns: Sequence[str],
    versions: Sequence[Version],
    *,
    replace: bool,
) -> None:
    """Make the last version of each key the table's row.

    With `replace`, rows are deleted and inserted, so that a value of another unique column may
    pass from one row to another; without, they are updated where they are.
    """
    staging = StagedVersions(connection, table, columns, history=False)
    staging.fill(versions)
    replace = replace or not table.can_update
    if replace or any(version.is_gone for version in versions):
        is_old = sql.SQL("true") if replace else sql.SQL("r.{}").format(IS_GONE)
        connection.execute(
            sql.SQL("delete from {} t using {} r where {} and {}").format(
                table.identifier, ROWS, staging.match("t", "r"), is_old
            )
        )
    connection.execute(
        sql.SQL(
            "insert into {} ({}) overriding system value select {} from {} where not {} order by {}"
        ).format(table.identifier, names(columns), names(columns), ROWS, IS_GONE, SEQ)
        + (sql.SQL("") if replace else _on_conflict(table, columns))
    )
    staging.drop()


def _on_conflict(table: TargetTable, columns: Sequence[str]) -> sql.Composed:
    others = [column for column in columns if column not in table.keys]
    target = sql.SQL(" on conflict ({}) do ").format(names(table.keys))
    if not others:
        return target + sql.SQL("nothing")
    return target + sql.SQL("update set {}").format(
        sql.SQL(", ").join(
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(column)) for column in others
        )
    )


def merge_history(
    connection: psycopg.Connection,
    table: TargetTable,
    columns: Sequence[str],
    versions: Sequence[Version],
) -> None:
    """Add every version, and end the one that was current.

    A version begins when its change says, but never before the end of the last one: clocks of
    several writers may differ, and the order of the stream decides.
    """
    staging = StagedVersions(connection, table, columns, history=True)
    staging.fill(versions)
    keys = names(staging.keys)
    connection.execute(
        sql.SQL(
            "create temp table headrace_keys on commit drop as"
            " select k.*, greatest(interval '0', s.free_from - k.first_at) as shift"
            " from (select {keys}, min({at}) as first_at from {rows} group by {keys}) k"
            " left join lateral (select greatest(max(t.{valid_from}) + interval '1 microsecond',"
            "  max(t.{valid_to})) as free_from from {table} t where {same}) s on true"
        ).format(
            keys=keys,
            at=AT,
            rows=ROWS,
            table=table.identifier,
            same=staging.match("t", "k"),
            **_HISTORY,
        )
    )
    connection.execute(
        sql.SQL(
            "update {table} t set {valid_to} = k.first_at + k.shift, {current} = false"
            " from headrace_keys k where {same} and t.{current}"
        ).format(table=table.identifier, same=staging.match("t", "k"), **_HISTORY)
    )
    connection.execute(
        sql.SQL(
            "insert into {table} ({columns}, {valid_from}, {valid_to}, {current})"
            " overriding system value"
            " select {columns}, begins, ends, ends is null from ("
            "  select r.*, r.{at} + k.shift as begins, lead(r.{at} + k.shift)"
            "   over (partition by {r_keys} order by r.{seq}) as ends"
            "  from {rows} r join headrace_keys k on {same}) v where not {is_gone} order by {seq}"
        ).format(
            table=table.identifier,
            columns=names(columns),
            at=AT,
            rows=ROWS,
            seq=SEQ,
            is_gone=IS_GONE,
            r_keys=names(staging.keys, "r"),
            same=staging.match("r", "k"),
            **_HISTORY,
        )
    )
    connection.execute("drop table headrace_keys")
    staging.drop()


def clear(connection: psycopg.Connection, table: TargetTable, at_us: int, *, history: bool) -> None:
    """Remove all rows; with history, end all versions."""
    if not history:
        connection.execute(sql.SQL("truncate {}").format(table.identifier))
        return
    connection.execute(
        sql.SQL(
            "update {table} set {current} = false,"
            " {valid_to} = greatest({at}, {valid_from} + interval '1 microsecond') where {current}"
        ).format(
            table=table.identifier,
            at=sql.Literal(_EPOCH + timedelta(microseconds=at_us)),
            **_HISTORY,
        )
    )
