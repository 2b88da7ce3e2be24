"""An Electric Shape as a change feed: the Shape API's log in batches, read again alike.

A shape has a handle; under it the log never changes, so a position is (handle, offset). When the
server gives up a shape (a truncate, a schema change, a restart without state) it answers 409 with
another handle: that is one batch of its own, a reset, and what follows is a snapshot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from psycopg.postgres import types

from headrace.backoff import Backoff
from headrace.postgres.collector import size_of
from headrace.postgres.copies import reset_refused
from headrace.postgres.pgoutput import Change
from headrace.postgres.values import Encoder, encoder

START = "-1"
_OK, _NO_CONTENT, _MUST_REFETCH = 200, 204, 409
_PASSING = frozenset({429, 500, 502, 503, 504})
_RETRY_SECS = Backoff(0.1, 5.0)
_LIVE_TIMEOUT_SECS = 60.0  # Electric answers a live request after 20 s at the latest


class ShapeError(RuntimeError):
    """The shape cannot be read; the message says what the server said."""


@dataclass(frozen=True)
class ShapePosition:
    handle: str = ""
    offset: str = START

    @classmethod
    def of(cls, offset: Mapping[str, str]) -> ShapePosition:
        return cls(offset["handle"], offset["offset"])

    def as_offset(self) -> dict[str, str]:
        return {"handle": self.handle, "offset": self.offset}


@dataclass(frozen=True)
class ShapeBatch:
    start: ShapePosition
    end: ShapePosition
    changes: list[Change]


@dataclass(frozen=True)
class _Answer:
    """One response: where it leads, and what it holds. A reset holds nothing."""

    end: ShapePosition
    is_reset: bool
    is_up_to_date: bool
    cursor: str
    changes: list[Change] = field(default_factory=list)


class ShapeFeed:
    """One shape of one server: a table, with a filter and columns if given in `params`."""

    def __init__(
        self,
        url: str,
        params: Mapping[str, str],
        *,
        retry_secs: float = 60.0,
        may_reset: bool = True,
    ) -> None:
        self._url = url.rstrip("/") + "/v1/shape"
        self._params = dict(params)
        self._table = _qualified(params["table"])
        self._retry_secs = retry_secs
        self._may_reset = may_reset
        self._http = httpx.Client(timeout=httpx.Timeout(10, read=_LIVE_TIMEOUT_SECS))
        self._schema: dict[str, Any] = {}
        self._cursor = ""
        # The last position that the server reported as up to date.
        self.tail: ShapePosition | None = None

    def close(self) -> None:
        self._http.close()

    def next_batch(
        self, start: ShapePosition, *, rows_max: int, bytes_max: int, live: bool
    ) -> ShapeBatch:
        """What follows `start`: up to the tail, or enough. With `live`, waits there for more.

        It ends with an answer of the server, which sends about 10 MB in one.
        """
        changes: list[Change] = []
        size_bytes = 0
        at = start
        while len(changes) < rows_max and size_bytes < bytes_max:
            waits = live and not changes and at == self.tail
            answer = self._ask(at, live=waits)
            if answer.is_reset:
                return self._reset(start, at, changes, answer.end)
            at, self._cursor = answer.end, answer.cursor
            changes += answer.changes
            size_bytes += sum(map(size_of, answer.changes))
            if answer.is_up_to_date:
                self.tail = at
                if changes or waits or not live:
                    break
        return ShapeBatch(start, at, changes)

    def reread(self, start: ShapePosition, end: ShapePosition) -> list[Change]:
        """A batch planned earlier. Of a shape that is gone nothing is left: a snapshot follows."""
        if start.handle and start.handle != end.handle:
            return [_reset_row(self._table)]
        changes: list[Change] = []
        at = start
        while _place(at.offset) < _place(end.offset):
            answer = self._ask(at, live=False)
            if answer.is_reset or answer.end.handle != end.handle:
                return []
            changes += [
                change for change in answer.changes if _place_of(change) <= _place(end.offset)
            ]
            if answer.end == at:
                break
            at = answer.end
        return changes

    def _reset(
        self, start: ShapePosition, at: ShapePosition, changes: list[Change], new: ShapePosition
    ) -> ShapeBatch:
        # What came before the reset is a batch of its own, so that both can be read again.
        self.tail = None
        if changes:
            return ShapeBatch(start, at, changes)
        if not self._may_reset:
            raise ShapeError(str(reset_refused(self._table, "the server gave up the shape")))
        return ShapeBatch(start, new, [_reset_row(self._table)])

    def _ask(self, at: ShapePosition, *, live: bool) -> _Answer:
        params = self._params | {"offset": at.offset}
        if at.handle:
            params["handle"] = at.handle
        if live:
            params |= {"live": "true", "cursor": self._cursor}
        answer = self._get(params)
        headers = answer.headers
        if answer.status_code == _MUST_REFETCH:
            return _Answer(ShapePosition(headers.get("electric-handle", "")), True, False, "")
        end = ShapePosition(
            headers.get("electric-handle", at.handle), headers.get("electric-offset", at.offset)
        )
        if "electric-schema" in headers:
            self._schema = json.loads(headers["electric-schema"])
        messages = answer.json() if answer.content else []
        controls = {message["headers"].get("control") for message in messages}
        if "must-refetch" in controls:
            return _Answer(ShapePosition(), True, False, "")
        changes = [self._change(m) for m in messages if "operation" in m["headers"]]
        up_to_date = (
            "electric-up-to-date" in headers
            or "up-to-date" in controls
            or answer.status_code == _NO_CONTENT
        )
        return _Answer(end, False, up_to_date, headers.get("electric-cursor", ""), changes)

    def _get(self, params: dict[str, str]) -> httpx.Response:
        deadline = time.monotonic() + self._retry_secs + _LIVE_TIMEOUT_SECS
        waits = _RETRY_SECS.waits()
        while True:
            pause = next(waits)
            try:
                answer = self._http.get(self._url, params=params)
            except httpx.TransportError as error:
                problem = str(error) or type(error).__name__
            else:
                if answer.status_code in (_OK, _NO_CONTENT, _MUST_REFETCH):
                    return answer
                problem = f"{answer.status_code} {answer.text[:300]}"
                if answer.status_code not in _PASSING:
                    raise ShapeError(f"The shape server refused {self._table}: {problem}")
                pause = max(pause, float(answer.headers.get("retry-after", 0)))
            if time.monotonic() + pause > deadline - _LIVE_TIMEOUT_SECS:
                raise ShapeError(f"The shape server at {self._url} is unreachable: {problem}")
            time.sleep(pause)

    def _change(self, message: dict[str, Any]) -> Change:
        about, row = message["headers"], message.get("value") or {}
        is_snapshot = "lsn" not in about
        op = "snapshot" if is_snapshot and about["operation"] == "insert" else about["operation"]
        old = message.get("old_value")
        unchanged = [] if op != "update" else [name for name in self._schema if name not in row]
        return Change(
            self._table,
            op,
            self._object({name: row[name] for name in self._key_columns() if name in row}),
            None if op == "delete" else self._object(row),
            self._object(old) if old else None,
            unchanged,
            str(about.get("lsn", "0")),
            int(about.get("op_position", 0)),
            int((about.get("txids") or [0])[0]),
            None,
        )

    def _key_columns(self) -> list[str]:
        keyed = [(column["pk_index"], name) for name, column in self._schema.items()
                 if column.get("pk_index") is not None]  # fmt: skip
        return [name for _, name in sorted(keyed)]

    def _object(self, row: dict[str, str | None]) -> str:
        fields = (f"{_TEXT(name)}:{self._encoded(name, value)}" for name, value in row.items())
        return "{" + ",".join(fields) + "}"

    def _encoded(self, name: str, value: str | None) -> str:
        if value is None:
            return "null"
        column = self._schema.get(name, {})
        known = types.get(column.get("type", "text"))
        if known is None:
            return _TEXT(value)
        return encoder(known.array_oid if column.get("dims") else known.oid)(_as_postgres(value))


_TEXT: Encoder = encoder(0)


def _as_postgres(value: str) -> str:
    """Electric writes booleans in full; the encoders expect what replication prints."""
    return {"true": "t", "false": "f"}.get(value, value)


def _reset_row(table: str) -> Change:
    return Change(table, "reset", None, None, None, [], "0", 0, 0, None)


def _qualified(table: str) -> str:
    return table if "." in table else f"public.{table}"


def _place(offset: str) -> tuple[int, float]:
    """Offsets are `LSN_POSITION`; a snapshot ends at `0_inf`, everything starts at `-1`."""
    if offset == START:
        return (-1, 0)
    lsn, _, position = offset.partition("_")
    return int(lsn), float("inf") if position == "inf" else int(position or 0)


def _place_of(change: Change) -> tuple[int, float]:
    return int(change.lsn), change.seq
