"""Each Postgres type has one JSON form, whatever the row looks like."""

from __future__ import annotations

import json

import psycopg
import pytest

from headrace.postgres.values import encoder

CASES = [
    ("int8", "9007199254740993", 9007199254740993),
    ("float8", "1.5", 1.5),
    ("float8", "NaN", "NaN"),
    ("numeric", "12345678901234567890.5", "12345678901234567890.5"),
    ("bool", "t", True),
    ("bool", "f", False),
    ("jsonb", '{"a": [1, null]}', {"a": [1, None]}),
    ("text", 'quote " back \\ tab \t é \U0001f600', 'quote " back \\ tab \t é \U0001f600'),
    ("uuid", "3f2504e0-4f89-11d3-9a0c-0305e82c3301", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"),
    ("timestamptz", "2026-11-15 11:00:00+00", "2026-11-15 11:00:00+00"),
]
ARRAYS = [
    ("int4", "{1,NULL,3}", [1, None, 3]),
    ("int4", "{{1,2},{3,4}}", [[1, 2], [3, 4]]),
    ("int4", "[0:1]={5,6}", [5, 6]),
    ("int4", "{}", []),
    ("text", '{a,"b c","d\\"e","NULL",NULL,""}', ["a", "b c", 'd"e', "NULL", None, ""]),
    ("bool", "{t,f}", [True, False]),
]


@pytest.mark.parametrize(("name", "text", "value"), CASES)
def test_a_value_becomes_json_by_its_type(name: str, text: str, value: object) -> None:
    assert json.loads(encoder(psycopg.postgres.types[name].oid)(text)) == value


@pytest.mark.parametrize(("name", "text", "value"), ARRAYS)
def test_an_array_becomes_an_array(name: str, text: str, value: object) -> None:
    assert json.loads(encoder(psycopg.postgres.types[name].array_oid)(text)) == value


def test_a_type_nobody_knows_is_text() -> None:
    assert encoder(999_999)("(1,2)") == '"(1,2)"'
