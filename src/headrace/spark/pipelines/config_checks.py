"""What the values of a pipeline's configuration must be, by the name of their key.

Spark's options and Postgres check most of them, too, but only once Java runs, in the words of an
option, and as a failure of the pipeline. Here the file is refused first.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headrace.errors import InvalidName
from headrace.postgres.catalog import qualified
from headrace.postgres.slot_names import SlotError, check_slot_name
from headrace.protocol.buckets import check_bucket_id
from headrace.spark.pipelines.schema_text import check_schema
from headrace.spark.streams.row_checks import name_refusal
from headrace.spark.streams.stream_options import parse_offsets

_AT_LEAST_ONE: Final = re.compile(r"\w+_per_batch|row_bytes_max|partitions")
_SELECTORS: Final = ("streams", "pattern", "bucket")


def check(name: str, value: Any) -> None:
    """Raise ValueError, which names the key, if it cannot have this value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        least = 1 if _AT_LEAST_ONE.fullmatch(name) else 0
        if not value >= least:
            raise ValueError(f"{name} must be {least} or more, not {value}.")
    elif name in _CHECKS:
        _CHECKS[name](name, value)


def check_selection(given: Mapping[str, Any], known: Collection[str], default: Any) -> None:
    """One way to choose streams, of those that a table of the file may have."""
    if "pattern" not in known:
        return
    chosen = [key for key in _SELECTORS if given.get(key)]
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(chosen)}: give one of them, each chooses the streams.")
    if not chosen and "streams" in given and default:
        raise ValueError("streams is empty: name one at least, or give pattern or bucket.")
    if given.get("prefix") and "bucket" not in chosen and (chosen or default):
        raise ValueError("prefix is of the streams of a bucket: set bucket, too.")


def check_known(given: Iterable[str], known: Collection[str]) -> None:
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; keys are {', '.join(known)}."
            raise ValueError(f"there is no key {key}{hint}")


def _url(name: str, value: str) -> None:
    if not value and name != "server":
        return
    try:
        place = urlsplit(value)
        is_url = place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ValueError(f"{name} must be a URL such as http://localhost:4437, not {value!r}.")


def _token(name: str, value: str) -> None:
    if not (value.isascii() and (value.isprintable() or not value)):
        raise ValueError(f"{name} has a character that no header can have, such as a line end.")


def _postgres(name: str, value: str) -> None:
    try:
        found = conninfo_to_dict(value)
    except psycopg.ProgrammingError as error:
        reason = str(error).strip()
        raise ValueError(
            f"{name} must be a URL such as postgresql://user:password@host/database: {reason}."
        ) from None
    if not found:
        raise ValueError(f"{name} is empty: give postgresql://user:password@host/database.")


def _starting(name: str, value: str) -> None:
    parse_offsets(name, value)


def _slot(name: str, value: str) -> None:
    try:
        if value:
            check_slot_name(value)
    except SlotError as error:
        raise ValueError(f"{name}: {error}") from None


def _tables(name: str, value: tuple[str, ...]) -> None:
    if not value:
        raise ValueError(f"{name} is empty: name one at least, such as public.items.")
    known = set[str]()
    for table in value:
        if "," in table:
            raise ValueError(f"{name}: {table!r} has a comma.")
        try:
            found = qualified(table)
        except SlotError as error:
            raise ValueError(f"{name}: {error}") from None
        if found in known:
            raise ValueError(f"{name}: {found} is named twice.")
        known.add(found)


def _table(name: str, value: str) -> None:
    """Of Postgres; a directory, or a name with marks in it, its pipeline checks."""
    parts = value.split(".")
    if "/" not in value and "{" not in value and (len(parts) > 2 or not all(parts)):
        raise ValueError(f"{name}: {value!r} is not a table's name: write schema.table.")


def _bucket(name: str, value: str) -> None:
    try:
        if value:
            check_bucket_id(value)
    except InvalidName as error:
        raise ValueError(f"{name}: {value!r} cannot be a bucket. {error.reason}") from None


def _streams(name: str, value: tuple[str, ...]) -> None:
    if "" in value:
        raise ValueError(f"{name}: a stream's name is empty.")


def _keys(name: str, value: tuple[str, ...]) -> None:
    if "" in value:
        raise ValueError(f"{name}: a column's name is empty.")


def _written(name: str, value: str) -> None:
    """A stream that is written to; empty is none, or the usual one."""
    if "," in value:
        raise ValueError(f"{name}: {value!r} has a comma.")
    filled = re.sub(r"\{(schema|table|key|stream)\}", "some", value)
    if filled and (reason := name_refusal(filled)):
        raise ValueError(f"{name}: {value!r} cannot be a stream. {reason}")


def _filled(name: str, value: str) -> None:
    if not value:
        raise ValueError(f"{name} must not be empty.")


def _path(name: str, value: str) -> None:
    if value and not value.startswith("$."):
        raise ValueError(f"{name}: {value!r} is not a path such as $.at.")


def _to(name: str, value: str) -> None:
    _filled(name, value)
    _written(name, value)


_CHECKS: Final[Mapping[str, Callable[[str, Any], None]]] = {
    "server": _url,
    "electric": _url,
    "token": _token,
    "postgres": _postgres,
    "starting": _starting,
    "slot": _slot,
    "tables": _tables,
    "table": _table,
    "bucket": _bucket,
    "streams": _streams,
    "keys": _keys,
    "quarantine": _written,
    "stream": _written,
    "to": _to,
    "writer": _filled,
    "producer": _filled,
    "schema": check_schema,
    "time": _path,
}
