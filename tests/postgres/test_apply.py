"""Changes applied to real tables: rows as they are now, or with their history; each change once."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headrace.changes.rejected import Rejected
from headrace.changes.rules import CannotApply, Rules
from headrace.client import State
from headrace.postgres.apply.registry import prepare as prepare_registry
from headrace.postgres.apply.writer import apply
from headrace.postgres.ledger import Claim, prepare
from headrace.postgres.sink import Target

pytestmark = pytest.mark.slow

_STREAM = "/postgres/items"


def put(key: str, value: dict[str, Any], operation: str = "upsert", **headers: Any) -> Any:
    return {
        "type": "items", "key": key, "value": value,
        "headers": {"operation": operation, **headers},
    }  # fmt: skip


def gone(key: str, **headers: Any) -> Any:
    return {"type": "items", "key": key, "headers": {"operation": "delete", **headers}}


def control(name: str, **more: Any) -> Any:
    return {"headers": {"control": name}, **more}


RESET = control("reset")


class Applier:
    """A writer of one database; each call is a batch."""

    def __init__(self, url: str, rules: Rules) -> None:
        self.url, self.rules = url, rules
        self.batch = 0
        self.rejected: list[Rejected] = []
        prepare(url)
        prepare_registry(url)

    def __call__(
        self, *messages: Any, stream: str = _STREAM, batch: int | None = None, **more: Any
    ) -> Any:
        return self.batches([(stream, messages)], batch=batch, **more)

    def batches(
        self,
        streams: Sequence[tuple[str, Sequence[Any]]],
        batch: int | None = None,
        is_snapshot: bool = False,
    ) -> Any:
        if batch is None:
            batch = self.batch
            self.batch += 1
        rows = [
            (stream, f"{batch:016}_{number:016}", _bytes(message), is_snapshot)
            for stream, messages in streams
            for number, message in enumerate(messages)
        ]
        columns = [pa.array(list(c)) for c in zip(*rows, strict=True)]
        names = ["stream", "offset", "value", "is_snapshot"]
        claim = Claim("w", "query", 0, batch, "run", "")
        return apply(
            Target(self.url, "the tables", (), retry_secs=5),
            self.rules,
            "w",
            claim,
            [pa.RecordBatch.from_arrays(columns, names=names)],
            self.rejected.extend,
        )

    @property
    def reasons(self) -> list[str]:
        return [each.reason for each in self.rejected]


def _bytes(message: Any) -> bytes:
    return message if isinstance(message, bytes) else json.dumps(message).encode()


def execute(url: str, query: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(query.encode())


def rows(url: str, query: str = "select * from items order by 1") -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchall()


@pytest.fixture
def items(database: str) -> Applier:
    execute(database, "create table items (id int primary key, name text, big text)")
    return Applier(database, Rules())


def row(id_: int, name: str | None = "n", big: str | None = "b") -> dict[str, Any]:
    return {"id": id_, "name": name, "big": big}


def test_the_last_change_of_a_key_is_the_row(items: Applier) -> None:
    items(put("1", row(1, "a")), put("2", row(2)), put("1", row(1, "b")), put("3", row(3)))
    items(gone("2"), put("3", row(3, None)), put("4", row(4)), gone("4"))
    assert rows(items.url) == [(1, "b", "b"), (3, None, "b")]


def test_a_batch_that_comes_again_changes_nothing(items: Applier) -> None:
    items(put("1", row(1, "a")), batch=0)
    items(put("1", row(1, "b")), batch=1)
    assert items(put("1", row(1, "a")), batch=1).was_in
    assert rows(items.url) == [(1, "b", "b")]


def test_columns_that_a_change_leaves_out_keep_their_values(items: Applier) -> None:
    """From the stored row, from a change of the same batch, and through changes of key."""
    items(put("1", row(1, "a", "one")), put("2", row(2, "a", "two")))
    part = {"id": 1, "name": "b"}
    items(
        put("1", part, unchanged=["big"]),
        put("5", {"id": 5, "name": "moved"}, unchanged=["big"], was="2"),
        gone("2"),
        put("6", {"id": 6, "name": "moved on"}, unchanged=["big"], was="5"),
        gone("5"),
        put("7", row(7, "x", "seven")),
        put("7", {"id": 7, "name": "y"}, unchanged=["big"]),
    )
    assert rows(items.url) == [(1, "b", "one"), (6, "moved on", "two"), (7, "y", "seven")]
    items(put("1", row(1, "c", "new")), RESET, put("1", part, unchanged=["big"]))
    assert rows(items.url) == [(1, "b", None)], "a reset forgets what there was"


def test_a_row_that_changes_its_key_is_never_there_twice(items: Applier) -> None:
    """Though its batch ends before the delete of the old key: name may be unique."""
    execute(items.url, "alter table items add unique (name)")
    items(put("1", row(1, "only")))
    items(put("2", row(2, "only"), was="1"))
    assert rows(items.url) == [(2, "only", "b")]
    items(gone("1"))
    assert rows(items.url) == [(2, "only", "b")]


def test_rows_may_swap_values_that_are_unique(items: Applier) -> None:
    execute(items.url, "alter table items add unique (name)")
    items(put("1", row(1, "a")), put("2", row(2, "b")))
    items(put("1", row(1, "tmp")), put("2", row(2, "a")), put("1", row(1, "b")))
    assert rows(items.url) == [(1, "b", "b"), (2, "a", "b")]
    assert items.rejected == []


def test_a_reset_empties_the_table_of_its_stream_only(items: Applier) -> None:
    execute(items.url, "create table others (id int primary key)")
    items.batches([(_STREAM, [put("1", row(1))]), ("/postgres/others", [put("1", {"id": 1})])])
    items(put("2", row(2)), RESET, put("3", row(3)))
    assert rows(items.url) == [(3, "n", "b")]
    assert rows(items.url, "select * from others") == [(1,)]


def test_a_reset_of_one_of_two_streams_of_a_table_is_refused(database: str) -> None:
    execute(database, "create table items (id int primary key)")
    both = Applier(database, Rules(table="{table}"))
    both.batches([("/b/1", [put("1", {"id": 1})]), ("/b/2", [put("2", {"id": 2})])])
    with pytest.raises(CannotApply, match=r"would empty public.items, which the stream /b/2 feeds"):
        both(RESET, stream="/b/1")
    assert rows(database) == [(1,), (2,)]


def test_a_snapshot_counts_when_it_has_ended(items: Applier) -> None:
    items(put("1", row(1)), put("2", row(2)))
    items(put("3", row(3)), control("snapshot-start"), put("1", row(1, "new")))
    assert [id_ for id_, *_ in rows(items.url)] == [1, 2, 3]
    items(put("4", row(4)))
    assert [id_ for id_, *_ in rows(items.url)] == [1, 2, 3]
    items(put("1", row(1, "newer")), control("snapshot-end"), put("5", row(5)))
    assert rows(items.url) == [(1, "newer", "b"), (4, "n", "b"), (5, "n", "b")]
    assert rows(items.url, "select count(*) from headrace.applied_pending") == [(0,)]


def test_a_state_of_a_compacted_stream_replaces_everything(items: Applier) -> None:
    items(put("1", row(1)))
    state = {"offset": "x", "collections": {"items": {"2": row(2), "3": {"id": "bad"}}}}
    items(state, is_snapshot=True)
    assert rows(items.url) == [(2, "n", "b")]
    (bad,) = items.rejected
    assert json.loads(bad.row["message"]) == {"type": "items", "key": "3", "value": {"id": "bad"}}


def test_messages_that_postgres_refuses_are_set_aside_and_the_others_have_their_effect(
    items: Applier,
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


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"[1]", "not a change"),
        (b"\xff", "not a change"),
        (b"no", "not a change"),
        ({"type": "items"}, "no type and key"),
        (put("1", row(1), "append"), "set whole"),
        (put("1", row(1), "rename"), "not known"),
        (
            {"type": "items", "key": "1", "value": 5, "headers": {"operation": "insert"}},
            "is not an object",
        ),
        ({"op": "z", "before": None, "after": None}, "'z' is not known"),
    ],
)
def test_what_is_no_change_is_set_aside_with_a_reason(
    items: Applier, message: Any, reason: str
) -> None:
    items(put("1", row(1)), message, put("2", row(2)))
    assert [id_ for id_, *_ in rows(items.url)] == [1, 2]
    (found,) = items.reasons
    assert reason in found


def test_messages_about_no_row_are_passed_over(items: Applier) -> None:
    items({"headers": {"control": "something-new"}}, put("1", row(1)))
    assert (rows(items.url), items.rejected) == ([(1, "n", "b")], [])


@pytest.mark.parametrize("seed", range(12))
def test_any_changes_in_any_batches_make_what_a_state_says(items: Applier, seed: int) -> None:
    rng = random.Random(seed)
    state = State()
    for _ in range(12):
        batch = [message for _ in range(rng.randint(1, 8)) for message in any_change(rng)]
        cut = rng.randint(0, len(batch))
        for part in (batch[:cut], batch[cut:]):
            if part:
                items(*part)
        for message in batch:
            state.apply(message)
        found = {str(id_): (name, big) for id_, name, big in rows(items.url)}
        folded = state.rows("items").items()
        assert found == {key: (row.get("name"), row.get("big")) for key, row in folded}
    assert items.rejected == []


def any_change(rng: random.Random) -> list[Any]:
    """One change of few keys. A change of key is two messages, which a batch may part."""
    key, name = rng.randint(1, 5), str(rng.randint(0, 99))
    value: dict[str, Any] = {"id": key, "name": name}
    match rng.choice("pppuuumddrsse"):
        case "p":
            return [put(str(key), value | {"big": name})]
        case "u":
            return [put(str(key), value, unchanged=["big"])]
        case "m":
            was = str(key % 5 + 1)
            return [put(str(key), value, unchanged=["big"], was=was), gone(was)]
        case "d":
            return [gone(str(key))]
        case "r":
            return [RESET]
        case "s":
            return [control("snapshot-start")] if rng.random() < 0.3 else []
        case _:
            return [control("snapshot-end")]


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
    applier = Applier(database, Rules())
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
    applier = Applier(database, Rules())
    applier(
        put("1/x/[1]", {"a": 1, "b": "x", "c": [1]}),
        put("%null/y/%null", {"a": None, "b": "y", "c": None}),
    )
    applier(gone("%null/y/%null"), put("2/x/[1]", {"a": 2, "b": "x", "c": [1]}), gone("1/x/[1]"))
    assert rows(database) == [(2, "x", [1])]
    with pytest.raises(CannotApply, match=r"items has no primary key.*set keys"):
        applier(put("1", {"a": 1, "b": "x", "c": []}))


def test_rows_known_by_other_columns_than_the_table_has_are_refused(database: str) -> None:
    """Their deletes would miss them, or be of other rows."""
    execute(database, "create table items (a text, b text, v int, primary key (b, a))")
    applier = Applier(database, Rules())
    applier(put("x/y", {"a": "x", "b": "y", "v": 1}))
    applier(gone("x/y"))
    assert rows(database) == []
    with pytest.raises(CannotApply, match=r"as 'y/x', which does not match its a, b.*Set keys"):
        applier(put("y/x", {"a": "x", "b": "y", "v": 1}), batch=2)
    applier.rules = Rules(keys=("b", "a"))
    applier(put("y/x", {"a": "x", "b": "y", "v": 1}), batch=2)
    applier(gone("y/x"), batch=3)
    assert rows(database) == []


def test_columns_of_a_schema_message_are_added_with_their_types(items: Applier) -> None:
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


def test_a_table_is_made_from_what_the_stream_says(database: str) -> None:
    applier = Applier(database, Rules())
    columns = [
        {"name": "b", "type": "text", "key": True},
        {"name": "a", "type": "integer[]", "key": False},
    ]
    schema = control("schema", type="t", value={"columns": columns})
    applier(RESET, schema, put("x", {"b": "x", "a": [1]}), stream="/postgres/made.t")
    applier(put("x", {"b": "x", "a": [2]}), stream="/postgres/made.t")
    assert rows(database, "select * from made.t") == [("x", [2])]
    with pytest.raises(CannotApply, match=r"There is no table public.unknown.*set keys"):
        applier(put("x", {"b": 1}), stream="unknown")
    guessing = Applier(database, Rules(keys=("id",)))
    guessing.batch = 10
    guessing(put("1", {"n": None, "at": "x"}), put("2", {"n": 1.5, "at": "y"}), stream="made")
    assert rows(database, "select * from made order by id") == [("1", None, "x"), ("2", 1.5, "y")]


def test_new_columns_are_added_refused_or_left_out_as_configured(items: Applier) -> None:
    items.rules = Rules(new_columns="refuse")
    with pytest.raises(CannotApply, match="items has no column new, which its stream has now"):
        items(put("1", row(1) | {"new": 1}), batch=0)
    items.rules = Rules(new_columns="ignore")
    items(put("1", row(1) | {"new": 1}), batch=0)
    assert rows(items.url) == [(1, "n", "b")]
    items.rules = Rules(new_columns="add")
    items(put("1", row(1) | {"new": None}), put("2", row(2) | {"new": 2}), batch=1)
    assert rows(items.url) == [(1, "n", "b", None), (2, "n", "b", 2)]


def test_a_column_that_only_the_table_has_is_left_alone(items: Applier) -> None:
    execute(items.url, "alter table items add seen int default 7")
    items(put("1", row(1)))
    execute(items.url, "update items set seen = 8")
    items(put("1", row(1, "new")))
    assert rows(items.url) == [(1, "new", "b", 8)]


def test_a_column_that_a_value_leaves_out_is_null_then(items: Applier) -> None:
    items(put("1", row(1)), put("1", {"id": 1, "name": "x"}))
    assert rows(items.url) == [(1, "x", None)]


def test_triggers_and_foreign_keys_fire_unless_switched_off(items: Applier) -> None:
    execute(items.url, "create table refers (id int primary key references items)")
    items(put("9", {"id": 9}), stream="refers")
    assert "foreign key" in items.reasons[0]
    items.rules = Rules(fire_triggers=False)
    items(put("9", {"id": 9}), stream="refers")
    assert rows(items.url, "select * from refers") == [(9,)]


HISTORY = "select id, name, big, valid_from::text, valid_to::text, current from items order by 4, 1"


def day(number: int) -> str:
    return f"2026-01-{number:02}T00:00:00Z"


@pytest.fixture
def history(database: str) -> Applier:
    columns = [
        {"name": "id", "type": "integer", "key": True},
        {"name": "name", "type": "text"},
        {"name": "big", "type": "text"},
    ]
    applier = Applier(database, Rules(history=True))
    execute(database, "set timezone = utc")
    applier(control("schema", type="items", value={"columns": columns}))
    return applier


def spans(applier: Applier, key: int) -> list[tuple[Any, ...]]:
    return rows(
        applier.url,
        "select name, big, to_char(valid_from at time zone 'utc', 'MM-DD'),"
        " to_char(valid_to at time zone 'utc', 'MM-DD'), current"
        f" from items where id = {key} order by valid_from",
    )


def test_history_has_every_version_with_its_time(history: Applier) -> None:
    history(put("1", row(1, "a", "one"), timestamp=day(1)))
    history(
        put("1", {"id": 1, "name": "b"}, unchanged=["big"], timestamp=day(2)),
        put("1", {"id": 1, "name": "c"}, unchanged=["big"], timestamp=day(3)),
        put("2", row(2, "x", "two"), timestamp=day(3)),
    )
    assert spans(history, 1) == [
        ("a", "one", "01-01", "01-02", False),
        ("b", "one", "01-02", "01-03", False),
        ("c", "one", "01-03", None, True),
    ]
    history(
        put("3", {"id": 3, "name": "y"}, unchanged=["big"], was="2", timestamp=day(4)),
        gone("2", timestamp=day(4)),
        gone("1", timestamp=day(5)),
    )
    assert spans(history, 1)[-1] == ("c", "one", "01-03", "01-05", False)
    assert spans(history, 2) == [("x", "two", "01-03", "01-04", False)]
    assert spans(history, 3) == [("y", "two", "01-04", None, True)]
    history(put("1", row(1, "back"), timestamp=day(6)))
    assert spans(history, 1)[-1] == ("back", "b", "01-06", None, True)


def test_versions_never_overlap_though_times_go_back_or_are_the_same(history: Applier) -> None:
    history(put("1", row(1, "a"), timestamp=day(5)), put("1", row(1, "b"), timestamp=day(5)))
    history(
        put("1", row(1, "c"), timestamp=day(1)), gone("1"), put("1", row(1, "d"), timestamp=day(2))
    )
    found = rows(history.url, "select name, valid_from, valid_to, current from items order by 2")
    assert [name for name, *_ in found] == ["a", "b", "c", "d"]
    assert all(after[1] >= before[2] > before[1] for before, after in pairwise(found))
    assert [is_current for *_, is_current in found] == [False, False, False, True]


def test_a_reset_ends_all_versions_and_keeps_the_history(history: Applier) -> None:
    history(put("1", row(1), timestamp=day(1)), put("2", row(2), timestamp=day(1)))
    history(put("1", row(1, "b"), timestamp=day(2)), RESET, put("1", row(1, "c")))
    assert [(name, is_current) for name, *_, is_current in spans(history, 1)] == [
        ("n", False), ("b", False), ("c", True)
    ]  # fmt: skip
    assert [is_current for *_, is_current in spans(history, 2)] == [False]


def envelope(op: str, before: Any = None, after: Any = None, ts_ms: int = 0) -> Any:
    source = {"schema": "public", "table": "items", "ts_ms": ts_ms}
    return {"op": op, "before": before, "after": after, "source": source, "ts_ms": ts_ms}


def test_debeziums_envelope_is_applied(items: Applier) -> None:
    items.rules = Rules(table="{schema}.{table}")
    execute(items.url, "alter table items add doc jsonb")
    items(
        envelope("r", after=row(1, "read")),
        envelope("c", after=row(2) | {"doc": '{"a": 1}'}),
        envelope("c", after=row(3)),
        stream="db.public.items",
    )
    unavailable = "__debezium_unavailable_value"
    items(
        envelope("u", before=row(1), after=row(1, "new", unavailable)),
        envelope("d", before={"id": 3, "name": None, "big": None}),
        envelope("m"),
        envelope("d", before={"name": None}),
        stream="db.public.items",
    )
    assert rows(items.url) == [(1, "new", "b", None), (2, "n", "b", {"a": 1})]
    assert items.reasons == ["the message lacks id of the table's key"]
    items(envelope("t"), envelope("c", after=row(4)), stream="db.public.items")
    assert rows(items.url) == [(4, "n", "b", None)]
