"""What a client may ask for: a shape's definition and where in its log to go on from."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

REPLICAS = ("default", "full")
LOGS = ("full", "changes_only")
TABLE_CHARS_MAX = 200
WHERE_CHARS_MAX = 4000
IDENTIFIER = r'"(?:[^"]|"")+"|[A-Za-z_][\w$]*'
_TABLE = re.compile(rf"(?:(?P<schema>{IDENTIFIER})\.)?(?P<table>{IDENTIFIER})")
_COLUMN = re.compile(rf"\s*({IDENTIFIER})\s*(?:,|$)")
_OFFSET = re.compile(r"(\d{1,20})_(\d{1,20}|inf)")
_PARAM = re.compile(r"params\[(\d+)\]")

Offset = tuple[int, float]
BEFORE_ALL: Offset = (-1, 0)


class BadRequest(ValueError):
    """A request that is refused; `errors` names each bad parameter, as Electric does."""

    def __init__(self, **errors: str) -> None:
        super().__init__("; ".join(f"{name} {text}" for name, text in errors.items()))
        self.errors = {name: [text] for name, text in errors.items()}


def offset_text(offset: Offset) -> str:
    first, second = offset
    return f"{first}_{'inf' if second == inf else int(second)}"


def parse_offset(text: str) -> Offset:
    match = _OFFSET.fullmatch(text)
    if match is None:
        raise BadRequest(offset="has invalid format")
    return int(match[1]), inf if match[2] == "inf" else int(match[2])


@dataclass(frozen=True)
class Definition:
    """The table, columns and rows of a shape, and how its changes are reported."""

    schema: str
    table: str
    columns: tuple[str, ...] | None
    where: str | None
    params: tuple[tuple[int, str], ...]
    replica: str
    log: str

    @property
    def key(self) -> str:
        """Equal for equal definitions."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]

    @property
    def relation(self) -> str:
        return f"{self.schema}.{self.table}"

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Definition:
        """From what `asdict` and JSON made of it."""
        columns = stored["columns"]
        return cls(
            **{
                **stored,
                "columns": None if columns is None else tuple(columns),
                "params": tuple((int(number), value) for number, value in stored["params"]),
            }
        )

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Definition:
        schema, table = _parse_table(query.get("table", ""))
        where = query.get("where") or None
        if where is not None and len(where) > WHERE_CHARS_MAX:
            raise BadRequest(where=f"is longer than {WHERE_CHARS_MAX} characters")
        return cls(
            schema=schema,
            table=table,
            columns=_parse_columns(query.get("columns")),
            where=where,
            params=tuple(sorted(parse_params(query).items())),
            replica=_one_of("replica", query.get("replica", "default"), REPLICAS),
            log=_one_of("log", query.get("log", "full"), LOGS),
        )


def _parse_table(text: str) -> tuple[str, str]:
    if not text:
        raise BadRequest(table="can't be blank")
    match = _TABLE.fullmatch(text) if len(text) <= TABLE_CHARS_MAX else None
    if match is None:
        raise BadRequest(table="is not a table name, such as items or public.items")
    return unquoted(match["schema"]) if match["schema"] else "public", unquoted(match["table"])


def unquoted(identifier: str) -> str:
    if identifier.startswith('"'):
        return identifier[1:-1].replace('""', '"')
    return identifier.lower()


def _parse_columns(text: str | None) -> tuple[str, ...] | None:
    if not text:
        return None
    names, at = [], 0
    while at < len(text):
        match = _COLUMN.match(text, at)
        if match is None:
            raise BadRequest(columns="is not a list of column names separated by commas")
        names.append(unquoted(match[1]) if match[1].startswith('"') else match[1])
        at = match.end()
    return tuple(dict.fromkeys(names))


def parse_params(given: Mapping[str, Any]) -> dict[int, str]:
    """Values for the clause: `params[1]` and so on, or all of them as JSON in `params`."""
    numbered = {
        int(m[1]): str(value) for name, value in given.items() if (m := _PARAM.fullmatch(name))
    }
    if "params" in given:
        try:
            values = given["params"]
            values = json.loads(values) if isinstance(values, str) else values
            numbered |= {int(number): str(value) for number, value in values.items()}
        except (ValueError, AttributeError):
            raise BadRequest(params='is not JSON such as {"1": "value"}') from None
    return numbered


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise BadRequest(**{name: f"must be one of {', '.join(allowed)}"})
    return value
