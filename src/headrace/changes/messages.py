"""A message of a stream as events: State Protocol, session events, or Debezium's envelope."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from headrace.changes import debezium
from headrace.changes.events import (
    Clear,
    ColumnShape,
    Event,
    Fields,
    Gone,
    NotAChange,
    Put,
    SnapshotEnd,
    SnapshotStart,
    Source,
    TableShape,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_PUTS: Final = frozenset({"insert", "update", "upsert", "set"})
_DELETES: Final = frozenset({"delete", "remove"})
_NOTHING: Final = msgspec.Raw(b"")
_TOMBSTONE: Final = b"null"  # by which Debezium lets Kafka forget a deleted key


class _Headers(msgspec.Struct):
    operation: str | None = None
    control: str | None = None
    unchanged: tuple[str, ...] = ()
    was: str | None = None
    timestamp: object = None


class _Message(msgspec.Struct):
    type: str | None = None
    key: str | None = None
    value: msgspec.Raw = _NOTHING
    operation: str | None = None
    headers: _Headers | None = None
    op: str | None = None
    payload: msgspec.Raw = _NOTHING


class _Column(msgspec.Struct):
    name: str
    type: str = "text"
    key: bool = False


class _Columns(msgspec.Struct):
    columns: tuple[_Column, ...]
    primary_key: bool = True  # without one, all columns together identify a row


class _Snapshot(msgspec.Struct):
    collections: dict[str, dict[str, msgspec.Raw]]


_message = msgspec.json.Decoder(_Message)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_columns = msgspec.json.Decoder(_Columns)
_snapshot = msgspec.json.Decoder(_Snapshot)


def events_of(message: bytes) -> list[Event]:
    """What a message says; nothing for controls that are about no row. Raises NotAChange."""
    if message.strip() == _TOMBSTONE:
        return []
    try:
        found = _message.decode(message)
        headers = found.headers or _Headers()
        operation = headers.operation or found.operation
        if operation is None and headers.control is None and _is_envelope(found):
            return debezium.events_of(message)
        if headers.control is not None:
            return _control(headers.control, found, _micros(headers.timestamp))
        return [_row(operation, found, headers)]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise NotAChange(f"the message is not a change: {error}") from None


def events_of_snapshot(body: bytes) -> list[Event]:
    """A snapshot of a stream's state (docs/state.md): it replaces everything before it."""
    try:
        collections = _snapshot.decode(body).collections
        return [
            Clear(),
            *(
                Put(Source(type_), key, _row_fields(value))
                for type_, rows in collections.items()
                for key, value in rows.items()
            ),
        ]
    except msgspec.MsgspecError as error:
        raise NotAChange(f"the snapshot is not a state: {error}") from None


def _is_envelope(message: _Message) -> bool:
    return message.op is not None or bool(bytes(message.payload))


def _control(control: str, message: _Message, at_us: int | None) -> list[Event]:
    if control == "reset":
        return [Clear(at_us=at_us)]
    if control == "snapshot-start":
        return [SnapshotStart()]
    if control == "snapshot-end":
        return [SnapshotEnd()]
    if control == "schema" and message.type is not None:
        found = _columns.decode(message.value)
        columns = tuple(
            ColumnShape(each.name, each.type, each.key and found.primary_key)
            for each in found.columns
        )
        return [TableShape(Source(message.type), columns, found.primary_key)]
    return []  # another control: nothing about rows


def _row(operation: str | None, message: _Message, headers: _Headers) -> Event:
    if not message.type or message.key is None:
        raise NotAChange("the message has no type and key, and is not Debezium's envelope")
    source, at_us = Source(message.type), _micros(headers.timestamp)
    if operation in _DELETES:
        return Gone(source, message.key, {}, at_us)
    if operation in _PUTS:
        was = headers.was if headers.was != message.key else None
        fields = _row_fields(message.value)
        return Put(source, message.key, fields, headers.unchanged, was, at_us)
    if operation == "append":
        raise NotAChange("the operation append changes a part of a value, and a row is set whole")
    raise NotAChange(f"the operation {operation!r} is not known")


def _row_fields(value: msgspec.Raw) -> Fields:
    if not bytes(value).startswith(b"{"):
        raise NotAChange("the value is not an object, so it has no columns")
    return {name: bytes(part) for name, part in _fields.decode(value).items()}


def _micros(timestamp: object) -> int | None:
    """None if it is not RFC 3339: a row does not depend on its time."""
    try:
        at = msgspec.convert(timestamp, datetime)
    except msgspec.ValidationError:
        return None
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
