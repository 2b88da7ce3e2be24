"""Changes applied to tables, of Postgres and of a lake alike: the rows as they are now, or with
their history; each change once."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace.changes.rules import CannotApply, Rules
from headrace.client import State
from tests.changes.appliers import (
    RESET,
    STREAM,
    Applier,
    LakeApplier,
    PostgresApplier,
    control,
    envelope,
    gone,
    put,
    schema,
)

pytestmark = pytest.mark.slow

MakeApplier = Callable[[Rules], Applier]


@pytest.fixture(params=["postgres", "delta", "iceberg"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> MakeApplier:
    if request.param == "postgres":
        url = request.getfixturevalue("database")
        return lambda rules: PostgresApplier(url, rules)
    return lambda rules: LakeApplier(tmp_path / "lake", request.param, rules)


@pytest.fixture
def items(make: MakeApplier) -> Applier:
    applier = make(Rules())
    applier.create("id integer", "name text", "big text")
    return applier


def row(id_: int, name: str | None = "n", big: str | None = "b") -> dict[str, Any]:
    return {"id": id_, "name": name, "big": big}


def ids(applier: Applier) -> list[int]:
    return [id_ for id_, *_ in applier.rows()]


def test_the_last_change_of_a_key_is_the_row(items: Applier) -> None:
    items(put("1", row(1, "a")), put("2", row(2)), put("1", row(1, "b")), put("3", row(3)))
    items(gone("2"), put("3", row(3, None)), put("4", row(4)), gone("4"))
    assert items.rows() == [(1, "b", "b"), (3, None, "b")]


def test_a_batch_that_comes_again_changes_nothing(items: Applier) -> None:
    items(put("1", row(1, "a")), batch=0)
    items(put("1", row(1, "b")), batch=1)
    items(put("1", row(1, "a")), batch=1)
    assert items.rows() == [(1, "b", "b")]


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
    assert items.rows() == [(1, "b", "one"), (6, "moved on", "two"), (7, "y", "seven")]
    items(put("1", row(1, "c", "new")), RESET, put("1", part, unchanged=["big"]))
    assert items.rows() == [(1, "b", None)], "a reset forgets what there was"


def test_a_row_that_changes_its_key_is_never_there_twice(items: Applier) -> None:
    """Though its batch ends before the delete of the old key."""
    items(put("1", row(1, "only")))
    items(put("2", row(2, "only"), was="1"))
    assert items.rows() == [(2, "only", "b")]
    items(gone("1"))
    assert items.rows() == [(2, "only", "b")]


def test_a_reset_empties_the_table_of_its_stream_only(items: Applier) -> None:
    items.create("id integer", table="others")
    items.batches([(STREAM, [put("1", row(1))]), ("/postgres/others", [put("1", {"id": 1})])])
    items(put("2", row(2)), RESET, put("3", row(3)))
    assert items.rows() == [(3, "n", "b")]
    items(RESET)
    assert (items.rows(), items.rows("others")) == ([], [(1,)])


def test_a_reset_of_one_of_two_streams_of_a_table_is_refused(make: MakeApplier) -> None:
    both = make(Rules(table="{table}"))
    both.create("id integer")
    both.batches([("/b/1", [put("1", {"id": 1})]), ("/b/2", [put("2", {"id": 2})])])
    with pytest.raises(CannotApply, match=r"would empty public.items, which the stream /b/2 feeds"):
        both(RESET, stream="/b/1")
    assert both.rows() == [(1,), (2,)]


def test_a_snapshot_counts_when_it_has_ended(items: Applier) -> None:
    items(put("1", row(1)), put("2", row(2)))
    items(put("3", row(3)), control("snapshot-start"), put("1", row(1, "new")))
    assert ids(items) == [1, 2, 3]
    items(put("4", row(4)))
    assert ids(items) == [1, 2, 3]
    items(put("1", row(1, "newer")), control("snapshot-end"), put("5", row(5)))
    assert items.rows() == [(1, "newer", "b"), (4, "n", "b"), (5, "n", "b")]
    items(control("snapshot-start"), put("9", row(9)))
    items(RESET, put("1", row(1)))
    assert items.rows() == [(1, "n", "b")], "a reset ends a snapshot"


def test_a_state_of_a_compacted_stream_replaces_everything(items: Applier) -> None:
    items(put("1", row(1)))
    state = {"offset": "x", "collections": {"items": {"2": row(2), "3": {"id": "bad"}}}}
    items(state, is_snapshot=True)
    assert items.rows() == [(2, "n", "b")]
    (bad,) = items.rejected
    assert json.loads(bad.row["message"]) == {"type": "items", "key": "3", "value": {"id": "bad"}}


def test_messages_that_a_table_cannot_hold_are_set_aside_and_the_others_have_their_effect(
    items: Applier,
) -> None:
    """Each message by itself: what was before a refused one stays."""
    items(
        put("1", row(1, "first")),
        *(put(str(n), row(n)) for n in range(2, 40)),
        put("1", {"id": 1.5, "name": "no", "big": None}),
        put("51", {"id": "x"}),
        put("52", {"id": None}),
        gone("x"),
        put("2", row(2, "last")),
        gone("3"),
    )
    found = items.rows()
    assert found[:2] == [(1, "first", "b"), (2, "last", "b")]
    assert ids(items) == [1, 2, *range(4, 40)]
    assert len(items.rejected) == 4
    assert any("1.5" in reason for reason in items.reasons)
    assert items.rejected[0].row["stream"] == STREAM
    assert {each.row["offset"][-2:] for each in items.rejected} == {"39", "40", "41", "42"}


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
    tmp_path: Path, message: Any, reason: str
) -> None:
    items = LakeApplier(tmp_path, "delta", Rules())
    items.create("id integer", "name text", "big text")
    items(put("1", row(1)), message, put("2", row(2)))
    assert ids(items) == [1, 2]
    (found,) = items.reasons
    assert reason in found


def test_messages_about_no_row_are_passed_over(items: Applier) -> None:
    items({"headers": {"control": "something-new"}}, put("1", row(1)))
    assert (items.rows(), items.rejected) == ([(1, "n", "b")], [])


def test_a_message_that_names_no_table_is_set_aside(make: MakeApplier) -> None:
    applier = make(Rules(table="{table}", keys=("id",)))
    applier(schema("id integer", table=""), envelope("c", after=row(1)), put("2", row(2)))
    assert ids(applier) == [1, 2]
    assert applier.reasons == ["the message does not say which table it is of"]


@pytest.mark.parametrize("seed", range(3))
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
        found = {str(id_): (name, big) for id_, name, big in items.rows()}
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


# -- columns and tables -------------------------------------------------------------------------


def test_rows_known_by_other_columns_than_the_table_has_are_refused(make: MakeApplier) -> None:
    """Their deletes would miss them, or be of other rows."""
    applier = make(Rules())
    applier.create("a text", "b text", "v integer", keys=("a", "b"))
    applier(put("x/y", {"a": "x", "b": "y", "v": 1}))
    applier(gone("x/y"))
    assert applier.rows() == []
    with pytest.raises(CannotApply, match=r"as 'y/x', which does not match its a, b.*Set keys"):
        applier(put("y/x", {"a": "x", "b": "y", "v": 1}), batch=2)
    applier.rules = Rules(keys=("b", "a"))
    applier(put("y/x", {"a": "x", "b": "y", "v": 1}), batch=2)
    applier(gone("y/x"), batch=3)
    assert applier.rows() == []


def test_a_table_is_made_from_what_the_stream_says(make: MakeApplier) -> None:
    applier = make(Rules())
    made = schema("b text", "a integer[]", keys=("b",), table="t")
    applier(RESET, made, put("x", {"b": "x", "a": [1]}), stream="/postgres/made.t")
    applier(put("x", {"b": "x", "a": [2]}), stream="/postgres/made.t")
    assert applier.rows("made.t") == [("x", [2])]
    with pytest.raises(CannotApply, match=r"There is no table public.unknown.*set keys"):
        applier(put("x", {"b": 1}), stream="unknown")
    guessing = make(Rules(keys=("id",)))
    guessing.batch = 10
    guessing(put("1", {"n": None, "at": "x"}), put("2", {"n": 1.5, "at": "y"}), stream="made")
    assert guessing.rows("made", "id", "n", "at") == [("1", None, "x"), ("2", 1.5, "y")]


def test_a_message_that_does_not_fit_guessed_columns_is_set_aside(make: MakeApplier) -> None:
    applier = make(Rules(keys=("id",)))
    applier(gone("x"), put("1", {"id": 1, "n": 1}), put("y", {"n": 2}, was="z"), gone("2"))
    assert applier.rows("items", "id", "n") == [(1, 1)]
    assert len(applier.rejected) == 2
    applier(put("3", {"id": 3, "n": 3}))
    assert applier.rows("items", "id", "n") == [(1, 1), (3, 3)]


def test_a_table_that_is_not_to_be_made_is_missed(make: MakeApplier) -> None:
    applier = make(Rules(keys=("id",), create_table=False))
    with pytest.raises(CannotApply, match=r"no table public.items. Make it, or set create_table"):
        applier(put("1", row(1)))


def test_columns_of_a_schema_message_are_added_with_their_types(items: Applier) -> None:
    items(put("1", row(1)))
    items(schema("id integer", "price numeric(10,2)", "kind unknown_enum", "seen boolean"))
    items(put("2", {"id": 2, "price": "1.00", "kind": "k", "seen": True}))
    (one, two) = items.rows("items", "id", "name", "price", "kind", "seen")
    assert one == (1, "n", None, None, None)
    assert (str(two[2]), two[3:]) == ("1.00", ("k", True))


def test_new_columns_are_added_refused_or_left_out_as_configured(items: Applier) -> None:
    items.rules = Rules(new_columns="refuse")
    with pytest.raises(CannotApply, match="items has no column new, which its stream has now"):
        items(put("1", row(1) | {"new": 1}), batch=0)
    items.rules = Rules(new_columns="ignore")
    items(put("1", row(1) | {"new": 1}), batch=0)
    assert items.rows() == [(1, "n", "b")]
    items.rules = Rules(new_columns="add")
    items(put("1", row(1) | {"new": None}), put("2", row(2) | {"new": 2}), batch=1)
    assert items.rows() == [(1, "n", "b", None), (2, "n", "b", 2)]


def test_a_column_that_only_the_table_has_is_left_alone(items: Applier) -> None:
    items.add_column("seen text")
    items(put("1", row(1)))
    items.set("seen", "by me")
    items(put("1", row(1, "new")))
    assert items.rows() == [(1, "new", "b", "by me")]


def test_a_column_that_a_value_leaves_out_is_null_then(items: Applier) -> None:
    items(put("1", row(1)), put("1", {"id": 1, "name": "x"}))
    items(put("2", row(2)))
    items(put("2", {"id": 2, "name": "x"}))
    assert items.rows() == [(1, "x", None), (2, "x", None)]


# -- history ------------------------------------------------------------------------------------


def day(number: int) -> str:
    return f"2026-01-{number:02}T00:00:00Z"


@pytest.fixture
def history(make: MakeApplier) -> Applier:
    applier = make(Rules(history=True))
    applier(schema("id integer", "name text", "big text"))
    return applier


def spans(applier: Applier, key: int) -> list[tuple[Any, ...]]:
    found = [row for row in applier.dicts() if row["id"] == key]
    found.sort(key=lambda row: row["valid_from"])
    return [
        (row["name"], row["big"], _day(row["valid_from"]), _day(row["valid_to"]), row["current"])
        for row in found
    ]


def _day(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).strftime("%m-%d")


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
    found = history.rows("items", "valid_from", "valid_to", "name", "current")
    assert [name for _, _, name, _ in found] == ["a", "b", "c", "d"]
    assert all(after[0] >= before[1] > before[0] for before, after in pairwise(found))
    assert [is_current for *_, is_current in found] == [False, False, False, True]


def test_a_reset_ends_all_versions_and_keeps_the_history(history: Applier) -> None:
    history(put("1", row(1), timestamp=day(1)), put("2", row(2), timestamp=day(1)))
    history(put("1", row(1, "b"), timestamp=day(2)), RESET, put("1", row(1, "c")))
    assert [(name, is_current) for name, *_, is_current in spans(history, 1)] == [
        ("n", False), ("b", False), ("c", True)
    ]  # fmt: skip
    assert [is_current for *_, is_current in spans(history, 2)] == [False]


def test_history_that_comes_again_is_there_once(history: Applier) -> None:
    history(put("1", row(1, "a")), put("1", row(1, "b")), batch=1)
    history(put("1", row(1, "a")), put("1", row(1, "b")), batch=1)
    assert [name for name, *_ in spans(history, 1)] == ["a", "b"]


def test_a_source_with_a_column_of_history_is_refused(make: MakeApplier) -> None:
    applier = make(Rules(history=True, keys=("id",)))
    applier(put("1", row(1)))
    with pytest.raises(CannotApply, match="has a column current, as history has"):
        applier(put("1", row(1) | {"current": True}))


# -- Debezium -----------------------------------------------------------------------------------


def test_debeziums_envelope_is_applied(items: Applier) -> None:
    items.rules = Rules(table="{schema}.{table}")
    items(
        envelope("r", after=row(1, "read")),
        envelope("c", after=row(2)),
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
    assert items.rows() == [(1, "new", "b"), (2, "n", "b")]
    assert items.reasons == ["the message lacks id of the table's key"]
    items(envelope("t"), envelope("c", after=row(4)), stream="db.public.items")
    assert items.rows() == [(4, "n", "b")]


def test_a_debezium_update_with_another_key_moves_the_row(items: Applier) -> None:
    """With what it leaves out, and also when the key of `before` is all that it has."""
    items(envelope("c", after=row(1, "a", "one")), envelope("c", after=row(2)))
    moved = {"id": 5, "name": "moved", "big": "__debezium_unavailable_value"}
    items(envelope("u", before={"id": 1}, after=moved))
    items(envelope("u", before=row(2), after=row(2, "same")), b"null")
    assert items.rows() == [(2, "same", "b"), (5, "moved", "one")]
    assert items.rejected == []


def test_repeated_events_of_debezium_end_as_the_first_time(items: Applier) -> None:
    events = [
        envelope("c", after=row(1, "a")),
        envelope("u", before=row(1), after=row(1, "b")),
        envelope("d", before=row(1)),
        envelope("c", after=row(2, "c")),
    ]
    items(*events)
    items(*events[1:3])
    items(*events[2:])
    assert items.rows() == [(2, "c", "b")]
