"""Debezium's envelope as events: `op`, `before`, `after`, `source`, with or without its schema.

Dates, times, decimals and bytes come as numbers and base64; what they mean is in the schema
(`schemas.enable=true`). Without it they are passed on as they are, so the connector must be set to
`decimal.handling.mode=string` and `time.precision.mode=isostring`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

import msgspec

from headrace.changes.events import Clear, Event, Fields, Gone, NotAChange, Put, Source

UNAVAILABLE: Final = "__debezium_unavailable_value"
_UNAVAILABLE_VALUES: Final = frozenset(
    msgspec.json.encode(value)
    for value in (
        UNAVAILABLE,
        base64.b64encode(UNAVAILABLE.encode()).decode(),
        [UNAVAILABLE],
    )
)
_NULL: Final = b"null"
_EPOCH: Final = datetime(1970, 1, 1)  # local, as the types without a zone are
_EXACT: Final = Context(prec=100_000)


class _SourceBlock(msgspec.Struct):
    schema: str = ""
    table: str = ""
    ts_ms: int | None = None
    ts_us: int | None = None


class _Envelope(msgspec.Struct):
    op: str
    before: dict[str, msgspec.Raw] | None = None
    after: dict[str, msgspec.Raw] | None = None
    source: _SourceBlock = msgspec.field(default_factory=_SourceBlock)
    ts_ms: int | None = None


class _Field(msgspec.Struct):
    type: str
    field: str = ""
    name: str = ""
    parameters: dict[str, str] | None = None
    fields: list[_Field] = msgspec.field(default_factory=list)


class _WithSchema(msgspec.Struct):
    payload: _Envelope
    schema: _Field | None = None


_plain = msgspec.json.Decoder(_Envelope)
_with_schema = msgspec.json.Decoder(_WithSchema)
_kind = msgspec.json.Decoder(dict[str, msgspec.Raw])


def events_of(message: bytes) -> list[Event]:
    if "payload" in _kind.decode(message):
        found = _with_schema.decode(message)
        return _events(found.payload, _types(found.schema))
    return _events(_plain.decode(message), {})


def _types(schema: _Field | None) -> dict[str, _Field]:
    """The type of each column: `after` and `before` have the same."""
    for part in schema.fields if schema is not None else ():
        if part.field in ("after", "before"):
            return {column.field: column for column in part.fields}
    return {}


def _events(found: _Envelope, types: dict[str, _Field]) -> list[Event]:
    source = Source(found.source.table, found.source.schema)
    at_us = found.source.ts_us
    if at_us is None:
        at_ms = found.source.ts_ms if found.source.ts_ms is not None else found.ts_ms
        at_us = None if at_ms is None else at_ms * 1000
    if found.op in ("c", "r", "u") and found.after is not None:
        fields, unchanged = _fields(found.after, types)
        before = _fields(found.before, types)[0] if found.before and found.op == "u" else None
        return [Put(source, None, fields, unchanged, None, at_us, True, before)]
    if found.op == "d" and found.before is not None:
        return [Gone(source, None, _fields(found.before, types)[0], at_us)]
    if found.op == "t":
        return [Clear(source if source.type else None, at_us)]
    if found.op == "m":
        return []  # a logical decoding message
    if found.op in ("c", "r", "u", "d"):
        part = "before" if found.op == "d" else "after"
        raise NotAChange(f"the message of op {found.op!r} lacks {part}, the row that it is about")
    raise NotAChange(f"Debezium's op {found.op!r} is not known")


def _fields(
    row: dict[str, msgspec.Raw], types: dict[str, _Field]
) -> tuple[Fields, tuple[str, ...]]:
    fields: Fields = {}
    unchanged = []
    for name, raw in row.items():
        value = bytes(raw)
        if value in _UNAVAILABLE_VALUES:
            unchanged.append(name)
            continue
        kind = types.get(name)
        read = _READERS.get(kind.name) or _BY_TYPE.get(kind.type) if kind is not None else None
        if read is not None and kind is not None and value != _NULL:
            value = _read(read, value, kind)
        fields[name] = value
    return fields, tuple(unchanged)


def _read(read: Callable[[Any, _Field], str], value: bytes, kind: _Field) -> bytes:
    try:
        return msgspec.json.encode(read(msgspec.json.decode(value), kind))
    except (TypeError, ValueError, KeyError, OverflowError, ArithmeticError) as error:
        shown = f"{kind.field}: {value[:100]!r}"
        raise NotAChange(f"{shown} is not a {kind.name or kind.type}: {error}") from None


def _date(days: int, kind: _Field) -> str:
    return (_EPOCH + timedelta(days=days)).date().isoformat()


def _timestamp(unit_us: float) -> Callable[[int, _Field], str]:
    def read(value: int, kind: _Field) -> str:
        return (_EPOCH + timedelta(microseconds=_micros(value, unit_us))).isoformat(" ")

    return read


def _time(unit_us: float) -> Callable[[int, _Field], str]:
    def read(value: int, kind: _Field) -> str:
        secs, micros = divmod(_micros(value, unit_us), 1_000_000)
        return f"{secs // 3600:02}:{secs // 60 % 60:02}:{secs % 60:02}.{micros:06}"

    return read


def _micros(value: int, unit_us: float) -> int:
    """Nanoseconds lose what Postgres has no place for."""
    return value * int(unit_us) if unit_us >= 1 else value // 1000


def _duration(value: int, kind: _Field) -> str:
    return f"{value} microseconds"


def _decimal(value: str, kind: _Field) -> str:
    return _scaled(value, int((kind.parameters or {})["scale"]))


def _variable_decimal(value: dict[str, Any], kind: _Field) -> str:
    return _scaled(value["value"], value["scale"])


def _scaled(text: str, scale: int) -> str:
    unscaled = int.from_bytes(base64.b64decode(text, validate=True), "big", signed=True)
    return f"{Decimal(unscaled).scaleb(-scale, _EXACT):f}"


def _bits(value: str, kind: _Field) -> str:
    number = int.from_bytes(base64.b64decode(value, validate=True), "little")
    return f"{number:0{int((kind.parameters or {})['length'])}b}"


def _bytes(value: str, kind: _Field) -> str:
    return "\\x" + base64.b64decode(value, validate=True).hex()


_MS, _US, _NS = 1000.0, 1.0, 0.001

_READERS: Final[dict[str, Callable[[Any, _Field], str]]] = {
    "io.debezium.time.Date": _date,
    "io.debezium.time.Timestamp": _timestamp(_MS),
    "io.debezium.time.MicroTimestamp": _timestamp(_US),
    "io.debezium.time.NanoTimestamp": _timestamp(_NS),
    "io.debezium.time.Time": _time(_MS),
    "io.debezium.time.MicroTime": _time(_US),
    "io.debezium.time.NanoTime": _time(_NS),
    "io.debezium.time.MicroDuration": _duration,
    "io.debezium.data.Bits": _bits,
    "io.debezium.data.VariableScaleDecimal": _variable_decimal,
    "org.apache.kafka.connect.data.Date": _date,
    "org.apache.kafka.connect.data.Timestamp": _timestamp(_MS),
    "org.apache.kafka.connect.data.Time": _time(_MS),
    "org.apache.kafka.connect.data.Decimal": _decimal,
}
_BY_TYPE: Final[dict[str, Callable[[Any, _Field], str]]] = {"bytes": _bytes}
