"""Changes applied to Postgres: what its constraints, types and triggers make of them. What every
target does with changes is in tests/changes/test_applied_tables.py."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from headrace.changes.rules import CannotApply, Rules
from tests.changes.appliers import PostgresApplier, control, envelope, gone, put

pytestmark = pytest.mark.slow


def execute(url: str, query: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(query.encode())


def rows(url: str, query: str = "select * from items order by 1") -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchall()


@pytest.fixture
def items(database: str) -> PostgresApplier:
    execute(database, "create table items (id int primary key, name text, big text)")
    return PostgresApplier(database, Rules())


def row(id_: int, name: str | None = "n", big: str | None = "b") -> dict[str, Any]:
    return {"id": id_, "name": name, "big": big}


def test_a_batch_that_comes_again_changes_nothing(items: PostgresApplier) -> None:
    items(put("1", row(1, "a")), batch=0)
    items(put("1", row(1, "b")), batch=1)
    assert items(put("1", row(1, "a")), batch=1).was_in
    assert rows(items.url) == [(1, "b", "b")]


def test_a_row_that_changes_its_key_is_never_there_twice(items: PostgresApplier) -> None:
    """Though its batch ends before the delete of the old key: name may be unique."""
    execute(items.url, "alter table items add unique (name)")
    items(put("1", row(1, "only")))
    items(put("2", row(2, "only"), was="1"))
    assert rows(items.url) == [(2, "only", "b")]
    items(gone("1"))
    assert rows(items.url) == [(2, "only", "b")]


def test_rows_may_swap_values_that_are_unique(items: PostgresApplier) -> None:
    execute(items.url, "alter table items add unique (name)")
    items(put("1", row(1, "a")), put("2", row(2, "b")))
    items(put("1", row(1, "tmp")), put("2", row(2, "a")), put("1", row(1, "b")))
    assert rows(items.url) == [(1, "b", "b"), (2, "a", "b")]
    assert items.rejected == []


def test_a_snapshot_that_has_ended_leaves_nothing_behind(items: PostgresApplier) -> None:
    items(control("snapshot-start"), put("1", row(1)))
    items(put("2", row(2)), control("snapshot-end"))
    assert rows(items.url, "select id from items order by 1") == [(1,), (2,)]
    assert rows(items.url, "select count(*) from headrace.applied_pending") == [(0,)]


def test_messages_that_postgres_refuses_are_set_aside_and_the_others_have_their_effect(
    items: PostgresApplier,
) -> None:
    """Each message by itself: what was before a refused one stays."""
    execute(items.url, "alter table items add check (name <> 'no')")
    good = [put(str(n), row(n)) for n in range(2, 40)]
    items(
        put("1", row(1, "first")),
        *good,
        put("1", row(1, "no")),
        put("50", {"id": 50, "name": "\u0000"}),
        put("51", {"id": "x"}),
        put("2", row(2, "last")),
        gone("3"),
    )
    found = rows(items.url)
    assert found[:2] == [(1, "first", "b"), (2, "last", "b")]
    assert [id_ for id_, *_ in found] == [1, 2, *range(4, 40)]
    assert ["check" in items.reasons[0], "\\u0000" in items.rejected[1].row["message"]] == [1, 1]
    assert len(items.rejected) == 3
    assert items.rejected[0].row["offset"] == f"{0:016}_{39:016}"


NASTY = """
create type mood as enum ('so so', 'gre,at');
create domain positive as int check (value > 0);
create table "Nasty ""items" (
  a text, "b/c" int, moods mood[], n numeric, j json, jb jsonb, js jsonb[], ds positive[],
  d positive, bytes bytea, at timestamptz, grid int[][], r int4range, bits bit(3), dbl float8,
  id int generated always as identity, twice int generated always as ("b/c" * 2) stored,
  primary key (a, "b/c")
)
"""


def test_values_of_all_kinds_become_what_they_were(database: str) -> None:
    execute(database, NASTY)
    applier = PostgresApplier(database, Rules())
    name = 'Nasty "items'
    value = {
        "a": "x/%", "b/c": 1, "moods": ["so so", "gre,at", None], "n": "1e-20",
        "j": {"b": 1, "a": [None]}, "jb": "text", "js": [{"a": '"'}, [1]], "ds": [1], "d": 3,
        "bytes": "\\x00ff", "at": "2026-01-01 00:00:00+00", "grid": [[1, 2], [3, 4]],
        "r": "[1,5)", "bits": "101", "dbl": "NaN", "id": 77,
    }  # fmt: skip
    stream = f"/postgres/{name}"
    applier(put("x%2F%25/1", value), put("/2", value | {"a": "", "b/c": 2}), stream=stream)
    query = 'select *, j::text, n::text, js::text from "Nasty ""items" order by 1'
    empty, full = rows(database, query)
    assert empty[:2] == ("", 2)
    assert full[0:2] == ("x/%", 1)
    assert full[2:3] == (["so so", "gre,at", None],) or full[2] == '{"so so","gre,at",NULL}'
    assert full[5] == "text"
    assert full[9] == b"\x00\xff"
    assert full[11] == [[1, 2], [3, 4]]
    assert full[15:17] == (77, 2)
    assert full[17:] == (
        '{"b": 1, "a": [null]}',
        "0.00000000000000000001",
        '{"{\\"a\\": \\"\\\\\\"\\"}",[1]}',
    )
    applier(gone("x%2F%25/1"), gone("/2"), stream=stream)
    assert rows(database, query) == []
    assert applier.rejected == []


def test_without_a_key_all_columns_are_the_key(database: str) -> None:
    execute(database, "create table items (a int, b text, c int[])")
    applier = PostgresApplier(database, Rules())
    applier(
        put("1/x/[1]", {"a": 1, "b": "x", "c": [1]}),
        put("%null/y/%null", {"a": None, "b": "y", "c": None}),
    )
    applier(gone("%null/y/%null"), put("2/x/[1]", {"a": 2, "b": "x", "c": [1]}), gone("1/x/[1]"))
    assert rows(database) == [(2, "x", [1])]
    with pytest.raises(CannotApply, match=r"items has no primary key.*set keys"):
        applier(put("1", {"a": 1, "b": "x", "c": []}))


def test_columns_of_a_schema_message_are_added_with_their_types(items: PostgresApplier) -> None:
    columns = [
        {"name": "id", "type": "integer", "key": True},
        {"name": "price", "type": "numeric(10,2)"},
        {"name": "kind", "type": "unknown_enum"},
        {"name": "bad", "type": "int); drop table items; --"},
    ]
    items(put("1", row(1)), control("schema", type="items", value={"columns": columns}))
    items(put("2", {"id": 2, "price": "1.00", "kind": "k", "bad": "b"}))
    assert rows(items.url) == [
        (1, "n", "b", None, None, None), (2, None, None, pytest.approx(1), "k", "b")
    ]  # fmt: skip
    types = rows(
        items.url,
        "select format_type(atttypid, atttypmod) from pg_attribute"
        " where attrelid = 'items'::regclass and attnum > 3 order by attnum",
    )
    assert types == [("numeric(10,2)",), ("text",), ("text",)]


def test_triggers_and_foreign_keys_fire_unless_switched_off(items: PostgresApplier) -> None:
    execute(items.url, "create table refers (id int primary key references items)")
    items(put("9", {"id": 9}), stream="refers")
    assert "foreign key" in items.reasons[0]
    items.rules = Rules(fire_triggers=False)
    items(put("9", {"id": 9}), stream="refers")
    assert rows(items.url, "select * from refers") == [(9,)]


def test_debeziums_texts_of_json_become_documents(items: PostgresApplier) -> None:
    execute(items.url, "alter table items add doc jsonb")
    items(envelope("c", after=row(2) | {"doc": '{"a": 1}'}))
    assert rows(items.url) == [(2, "n", "b", {"a": 1})]
