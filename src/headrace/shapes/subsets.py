"""Subsets of a shape: some of its rows at a moment, read from the table itself.

A client that does not want a whole shape follows its changes alone (`log=changes_only`) and asks
for the rows that it needs. With them it gets what the snapshot had seen, so that it knows which of
the changes are in the rows already. Nothing of a subset is kept.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson
import psycopg
from psycopg import sql

from headrace.shapes import tables
from headrace.shapes.definition import (
    IDENTIFIER,
    WHERE_CHARS_MAX,
    BadRequest,
    Definition,
    parse_params,
    unquoted,
)
from headrace.shapes.messages import Entry, EntryWriter, snapshot_facts
from headrace.shapes.tables import Table

PREFIX = "subset__"
BYTES_MAX = 16 << 20
QUERY_SECS = 30
_NAMES = ("where", "params", "limit", "offset", "order_by", "where_expr", "order_by_expr")
_ORDER = re.compile(
    rf"\s*(?P<column>{IDENTIFIER})(?P<direction>\s+(?:asc|desc))?"
    r"(?P<nulls>\s+nulls\s+(?:first|last))?\s*(?:,|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Subset:
    """Which rows of a shape, in what order."""

    where: str | None = None
    params: tuple[tuple[int, str], ...] = ()
    order_by: str | None = None
    limit: int | None = None
    offset: int | None = None

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> Subset | None:
        """From parameters of a URL; None if it asks for the shape itself."""
        given = {k.removeprefix(PREFIX): v for k, v in query.items() if k.startswith(PREFIX)}
        return cls.of(given) if given else None

    @classmethod
    def of_body(cls, body: bytes) -> Subset:
        try:
            given = orjson.loads(body or b"{}")
        except orjson.JSONDecodeError:
            raise BadRequest(body="is not JSON") from None
        if not isinstance(given, dict):
            raise BadRequest(body="is not a JSON object")
        return cls.of({name.removeprefix(PREFIX): value for name, value in given.items()})

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Subset:
        for name in given:
            if name.partition("[")[0] not in _NAMES:
                raise BadRequest(**{PREFIX + name: f"is unknown; there are {', '.join(_NAMES)}"})
        where = given.get("where") or None
        if where is not None and (not isinstance(where, str) or len(where) > WHERE_CHARS_MAX):
            raise BadRequest(subset__where=f"is not text of at most {WHERE_CHARS_MAX} characters")
        order_by = given.get("order_by") or None
        if order_by is not None and not isinstance(order_by, str):
            raise BadRequest(subset__order_by="is not text, such as id desc")
        limit, offset = _count(given, "limit"), _count(given, "offset")
        if order_by is None and (limit is not None or offset is not None):
            raise BadRequest(subset__order_by="is required with a limit or an offset")
        params = tuple(sorted(parse_params(given).items()))
        return cls(where, params, order_by, limit, offset)


def _count(given: Mapping[str, Any], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise BadRequest(**{PREFIX + name: "is not a whole number from 0"})
    return int(text)


def read(url: str, definition: Definition, table: Table, subset: Subset) -> bytes:
    """The rows as JSON, with what their snapshot had seen."""
    mark = secrets.randbelow(1 << 31)
    asked = replace(definition, where=subset.where, params=subset.params, log="full")
    writer = EntryWriter(table, definition.replica)
    found: list[bytes] = []
    size = 0
    with tables.connect(url) as connection, connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        connection.execute(f"set local statement_timeout = '{QUERY_SECS}s'".encode())
        clauses = (tables.clause(definition, table), _clause(asked, table))
        where = [clause for clause in clauses if clause is not None]
        snapshot, rows = tables.rows(connection, asked, table, where, _ending(subset, table))
        try:
            for row in rows:
                entry: Entry = writer.snapshot(row)
                entry["headers"]["snapshot_mark"] = mark
                found.append(orjson.dumps(entry))
                size += len(found[-1])
                if size > BYTES_MAX:
                    raise BadRequest(subset__limit=f"lets more than {BYTES_MAX} bytes through")
        except (psycopg.DataError, psycopg.ProgrammingError) as error:
            sentence = error.diag.message_primary or str(error)
            raise BadRequest(subset__where=sentence) from error
    metadata = {"snapshot_mark": mark, "database_lsn": str(snapshot.lsn)}
    metadata |= snapshot_facts(snapshot)
    return b'{"metadata":%b,"data":[%b]}' % (orjson.dumps(metadata), b",".join(found))


def _clause(asked: Definition, table: Table) -> sql.Composed | None:
    try:
        return tables.clause(asked, table)
    except BadRequest as error:
        sentences = {PREFIX + name: texts[0] for name, texts in error.errors.items()}
        raise BadRequest(**sentences) from None


def _ending(subset: Subset, table: Table) -> sql.Composed:
    """What comes behind the condition of the query."""
    parts: list[sql.Composable] = []
    if subset.order_by is not None:
        columns = sql.SQL(", ").join(_order(subset.order_by, {c.name for c in table.columns}))
        parts.append(sql.SQL("order by {}").format(columns))
    if subset.limit is not None:
        parts.append(sql.SQL("limit {}").format(sql.Literal(subset.limit)))
    if subset.offset is not None:
        parts.append(sql.SQL("offset {}").format(sql.Literal(subset.offset)))
    return sql.SQL(" ").join(parts)


def _order(text: str, columns: Collection[str]) -> list[sql.Composable]:
    terms: list[sql.Composable] = []
    at = 0
    while at < len(text):
        match = _ORDER.match(text, at)
        if match is None:
            raise BadRequest(subset__order_by="is not a list such as title, id desc nulls last")
        name = unquoted(match["column"])
        if name not in columns:
            raise BadRequest(subset__order_by=f"unknown reference {name}")
        words = f"{match['direction'] or ''}{match['nulls'] or ''}"  # only words of the pattern
        terms.append(sql.Identifier(name) + sql.SQL(words))
        at = match.end()
    return terms
