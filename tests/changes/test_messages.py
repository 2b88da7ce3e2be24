"""Messages of each format as events."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from headrace.changes.events import (
    Clear,
    ColumnShape,
    Gone,
    NotAChange,
    Put,
    SnapshotEnd,
    SnapshotStart,
    Source,
    TableShape,
)
from headrace.changes.messages import events_of, events_of_snapshot

_DAY_US = 86_400_000_000


def events(message: Any) -> list[Any]:
    return events_of(json.dumps(message).encode())


def test_values_of_state_protocol_changes_stay_as_they_came() -> None:
    message = (
        b'{"type":"t","key":"k","value":{"n":1.50,"d":{"a":  1},"s":"\\u00e9"},"headers":'
        b'{"operation":"update","txid":"7","unchanged":["big"],"was":"j",'
        b'"timestamp":"1970-01-02T01:00:00+01:00"}}'
    )
    fields = {"n": b"1.50", "d": b'{"a":  1}', "s": b'"\\u00e9"'}
    assert events_of(message) == [Put(Source("t"), "k", fields, ("big",), "j", _DAY_US)]
    gone = {"type": "t", "key": "", "headers": {"operation": "delete"}}
    assert events(gone) == [Gone(Source("t"), "", {})]


@pytest.mark.parametrize("timestamp", [17, "yesterday", None, {}])
def test_a_time_that_is_not_one_costs_only_the_time(timestamp: Any) -> None:
    headers = {"operation": "insert", "timestamp": timestamp}
    (put,) = events({"type": "t", "key": "k", "value": {}, "headers": headers})
    assert put == Put(Source("t"), "k", {})


def test_session_events_set_and_remove() -> None:
    message = {"type": "t", "key": "k", "operation": "set", "value": {"a": None}}
    assert events(message) == [Put(Source("t"), "k", {"a": b"null"})]
    assert events({"type": "t", "key": "k", "operation": "remove"}) == [Gone(Source("t"), "k", {})]


def test_controls_are_events_or_nothing() -> None:
    def control(name: str, **more: Any) -> list[Any]:
        return events({"headers": {"control": name}, **more})

    assert control("reset") == [Clear()]
    assert control("snapshot-start") == [SnapshotStart()]
    assert control("snapshot-end") == [SnapshotEnd()]
    assert control("up-to-date") == []
    columns = [{"name": "a", "type": "int", "type_oid": 23, "key": True}, {"name": "b"}]
    shape = TableShape(Source("t"), (ColumnShape("a", "int", True), ColumnShape("b", "text")))
    assert control("schema", type="t", value={"columns": columns}) == [shape]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"1",
        b'"x"',
        b"[]",
        b"{}",
        b"{",
        b"\xff",
        b'{"type": 1}',
        b'{"headers": []}',
        b"[" * 9999,
    ],
)
def test_what_is_no_change_is_refused_with_a_sentence(message: bytes) -> None:
    with pytest.raises(NotAChange, match=r"^the "):
        events_of(message)


def test_a_snapshot_clears_and_puts_every_row() -> None:
    body = {"offset": "1", "collections": {"a": {"1": {"n": 1}}, "b": {"2": {}}}}
    assert events_of_snapshot(json.dumps(body).encode()) == [
        Clear(), Put(Source("a"), "1", {"n": b"1"}), Put(Source("b"), "2", {})
    ]  # fmt: skip
    with pytest.raises(NotAChange, match="not a state"):
        events_of_snapshot(b"{}")


def envelope(op: str, before: Any, after: Any) -> dict[str, Any]:
    source = {"schema": "public", "table": "t", "ts_ms": 86_400_000, "connector": "postgresql"}
    return {"op": op, "before": before, "after": after, "source": source, "ts_ms": 1}


def test_an_envelope_is_its_rows_with_the_time_of_its_source() -> None:
    source = Source("t", "public")
    for op in ("c", "r", "u"):
        (put,) = events(envelope(op, None, {"a": 1}))
        assert put == Put(source, None, {"a": b"1"}, (), None, _DAY_US, True)
    assert events(envelope("d", {"a": 1}, None)) == [Gone(source, None, {"a": b"1"}, _DAY_US)]
    assert events(envelope("t", None, None)) == [Clear(source, _DAY_US)]
    assert events({"payload": envelope("d", {"a": 1}, None)}) == events(
        envelope("d", {"a": 1}, None)
    )


@pytest.mark.parametrize(
    "placeholder",
    [
        "__debezium_unavailable_value",
        ["__debezium_unavailable_value"],
        base64.b64encode(b"__debezium_unavailable_value").decode(),
    ],
)
def test_values_that_debezium_does_not_have_are_unchanged(placeholder: Any) -> None:
    (put,) = events(envelope("u", None, {"a": 1, "big": placeholder}))
    assert (put.fields, put.unchanged) == ({"a": b"1"}, ("big",))


def test_a_tombstone_says_nothing() -> None:
    assert events_of(b" null\n") == []


def test_an_envelope_without_its_row_is_refused_with_what_it_lacks() -> None:
    for op, part in (("c", "after"), ("u", "after"), ("d", "before")):
        with pytest.raises(NotAChange, match=f"op '{op}' lacks {part}"):
            events(envelope(op, None, None))


@pytest.mark.parametrize(
    ("name", "type_", "value", "text"),
    [
        ("io.debezium.time.Date", "int32", -1, "1969-12-31"),
        ("org.apache.kafka.connect.data.Date", "int32", 19_000, "2022-01-08"),
        ("io.debezium.time.Timestamp", "int64", 1500, "1970-01-01 00:00:01.500000"),
        ("io.debezium.time.MicroTimestamp", "int64", -1, "1969-12-31 23:59:59.999999"),
        ("io.debezium.time.NanoTimestamp", "int64", 1_999, "1970-01-01 00:00:00.000001"),
        ("io.debezium.time.MicroTime", "int64", 3_600_000_001, "01:00:00.000001"),
        ("io.debezium.time.MicroDuration", "int64", 5, "5 microseconds"),
        ("io.debezium.time.ZonedTimestamp", "string", "2026-01-01T00:00Z", "2026-01-01T00:00Z"),
        ("org.apache.kafka.connect.data.Decimal", "bytes", "/w==", "-0.01"),
        ("io.debezium.data.VariableScaleDecimal", "struct", {"scale": 1, "value": "AQA="}, "25.6"),
        ("io.debezium.data.Bits", "bytes", "BQ==", "101"),
        ("", "bytes", "AP8=", "\\x00ff"),
    ],
)
def test_debeziums_types_are_read_by_their_schema(
    name: str, type_: str, value: Any, text: str
) -> None:
    column = {
        "type": type_,
        "name": name,
        "field": "a",
        "parameters": {"scale": "2", "length": "3"},
    }
    schema = {
        "type": "struct",
        "fields": [{"type": "struct", "field": "after", "fields": [column]}],
    }
    (put,) = events({"schema": schema, "payload": envelope("c", None, {"a": value})})
    assert json.loads(put.fields["a"]) == text
    (put,) = events({"schema": schema, "payload": envelope("c", None, {"a": None})})
    assert put.fields == {"a": b"null"}


def test_a_value_that_its_type_cannot_be_is_refused() -> None:
    column = {"type": "int32", "name": "io.debezium.time.Date", "field": "a"}
    schema = {
        "type": "struct",
        "fields": [{"type": "struct", "field": "after", "fields": [column]}],
    }
    for value in ("x", 10**12):
        with pytest.raises(NotAChange, match=r"a: .* is not a io.debezium.time.Date"):
            events({"schema": schema, "payload": envelope("c", None, {"a": value})})
