"""Changes applied to lake tables: what tells a batch that came again, a table that lost one, and
commits of others.

What every target does with changes is in tests/changes/test_applied_tables.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.changes.row_keys import key_text
from headrace.changes.rules import CannotApply, Rules
from headrace.spark.applied_lake import delta_table, iceberg_table
from headrace.spark.applied_lake.column_types import UTC_TIME
from headrace.spark.applied_lake.iceberg_files import remove_old
from headrace.spark.applied_lake.keyed_tables import LakeFormat
from headrace.spark.applied_lake.writer import Known
from headrace.spark.lake.parquet_files import LakeError
from tests.changes.appliers import RESET, LakeApplier, again, control, gone, put, schema

VERSIONS: dict[str, Any] = {
    "delta": delta_table.DeltaVersion,
    "iceberg": iceberg_table.IcebergVersion,
}
Make = Callable[..., LakeApplier]


@pytest.fixture(params=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> LakeFormat:
    found: LakeFormat = request.param
    return found


@pytest.fixture
def make(kind: LakeFormat, tmp_path: Path) -> Make:
    def made(**rules: Any) -> LakeApplier:
        return LakeApplier(tmp_path / "lake", kind, Rules(**{"keys": ("id",), **rules}))

    return made


def row(id_: int, name: str = "n") -> dict[str, Any]:
    return {"id": id_, "name": name}


def names(applier: LakeApplier, table: str = "items") -> list[Any]:
    return [name for _, name in applier.rows(table, "id", "name")]


class PowerCut(Exception):
    pass


def test_a_batch_that_ended_between_two_tables_is_completed_and_not_repeated(
    make: Make, kind: LakeFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """History would have it twice. The driver had noted nothing of the batch."""
    applier = make(history=True)
    streams = [("/b/a", [put("1", row(1, "a"))]), ("/b/b", [put("1", row(1, "b"))])]
    applier.batches(streams)
    replace = VERSIONS[kind].replace
    commits: list[Any] = []

    def once(*given: Any) -> None:
        if commits:
            raise PowerCut
        commits.append(replace(*given))

    monkeypatch.setattr(VERSIONS[kind], "replace", once)
    more = [("/b/a", [put("1", row(1, "c"))]), ("/b/b", [put("1", row(1, "d"))])]
    with pytest.raises(PowerCut):
        applier.batches(more, batch=1)
    monkeypatch.undo()
    assert [len(applier.dicts(name)) for name in "ab"] == [2, 1]
    restarted = again(applier)
    restarted.batches(more, batch=1)
    restarted.batches([("/b/a", [gone("1")])], batch=2)
    assert sorted(names(restarted, "a")) == ["a", "c"]
    assert sorted(names(restarted, "b")) == ["b", "d"]


def test_a_commit_of_somebody_else_in_between_is_kept(
    make: Make, kind: LakeFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is computed again from what the table has then."""
    applier = make()
    applier(schema("id integer", "name text"), put("1", row(1)), put("2", row(2)))
    applier.add_column("note text")
    replace = VERSIONS[kind].replace
    others: list[int] = []

    def interrupted(*given: Any) -> None:
        if not others:
            others.append(1)
            applier.set("note", "by me")
        replace(*given)

    monkeypatch.setattr(VERSIONS[kind], "replace", interrupted)
    applier(put("1", row(1, "new")), gone("2"), put("3", row(3)))
    assert applier.rows() == [(1, "new", "by me"), (3, "n", None)]


def test_a_reset_removes_what_somebody_added_in_between(
    make: Make, kind: LakeFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    applier = make()
    applier(put("1", row(1)))
    replace = VERSIONS[kind].replace
    others: list[int] = []

    def interrupted(*given: Any) -> None:
        if not others:
            others.append(1)
            other = again(applier, writer="other", query="other", known={0: Known({}, {})})
            other(put("7", row(7)), batch=0)
        replace(*given)

    monkeypatch.setattr(VERSIONS[kind], "replace", interrupted)
    applier(RESET, put("2", row(2)))
    assert applier.rows() == [(2, "n")]


def test_two_attempts_at_a_batch_add_it_once(
    make: Make, kind: LakeFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that was given up may still be running."""
    applier = make(history=True)
    applier(put("1", row(1)))
    replace = VERSIONS[kind].replace
    attempts: list[int] = []

    def twice(*given: Any) -> None:
        if not attempts:
            attempts.append(1)
            again(applier)(put("1", row(1, "x")), put("2", row(2)), batch=1)
        replace(*given)

    monkeypatch.setattr(VERSIONS[kind], "replace", twice)
    applier(put("1", row(1, "x")), put("2", row(2)), batch=1)
    assert len(applier.rows()) == 3


def test_a_table_that_lost_a_batch_is_refused(make: Make, kind: LakeFormat) -> None:
    applier = make()
    applier(put("1", row(1)))
    applier(put("2", row(2)))
    if kind == "delta":
        DeltaTable(str(applier.lake.root / "public" / "items")).restore(1)
    else:
        with applier.lake.table("items")._loaded() as table:  # type: ignore[attr-defined]
            table.manage_snapshots().set_current_snapshot(table.history()[0].snapshot_id).commit()
    with pytest.raises(LakeError, match=r"has committed batch 1 .* and now the table (was r|is)"):
        applier(put("3", row(3)))


def test_a_table_that_was_removed_is_not_made_anew_without_its_rows(
    make: Make, kind: LakeFormat, tmp_path: Path
) -> None:
    applier = make()
    applier(put("1", row(1)))
    (tmp_path / "lake").rename(tmp_path / "elsewhere")
    applier.lake.make_ready()
    with pytest.raises(LakeError, match="is not there any more"):
        applier(put("3", row(3)))


def test_another_checkpoint_of_the_same_writer_is_refused(make: Make) -> None:
    applier = make()
    applier(put("1", row(1)))
    other = again(applier, query="other", known={0: applier.known[0]}, batch=0)
    with pytest.raises(CannotApply, match=r"from another checkpoint\. If that is lost: headrace"):
        other(put("1", row(1, "twice")))
    other.writer = "w.1"  # as after a reset
    other(put("1", row(1, "again")))
    assert names(other) == ["again"]


def test_an_older_copy_of_the_checkpoint_is_refused(make: Make) -> None:
    """Its next batches may be cut in another way than those that are in."""
    applier = make()
    for number in range(3):
        applier(put("1", row(1, str(number))))
    with pytest.raises(CannotApply, match=r"has batch 2 .* now comes batch 1.* an older copy"):
        applier(put("1", row(1, "old")), batch=1)
    assert names(applier) == ["2"]


@pytest.mark.parametrize("name", ["../out", "..", "a/b", "", "x" * 300, "_headrace.t", "a.."])
def test_a_message_cannot_name_a_table_outside_the_lake(make: Make, name: str) -> None:
    applier = make(table="{table}")
    applier(put("1", row(1)) | {"type": name}, put("2", row(2)))
    assert names(applier) == ["n"]
    (reason,) = applier.reasons
    assert "cannot be the name of a directory" in reason or "has no type" in reason
    assert {path.name for path in applier.lake.root.iterdir()} <= {"public", "catalog.db"}


def test_a_table_that_does_not_name_its_key_needs_it_said(make: Make) -> None:
    applier = make(keys=())
    applier.create("id integer", "name text", keys=())
    with pytest.raises(CannotApply, match=r"does not say which columns are the key.* set\s+keys"):
        applier(put("1", row(1)))
    applier.rules = Rules(keys=("id",))
    applier(put("1", row(1)))
    assert names(applier) == ["n"]


def test_a_column_that_must_have_a_value_refuses_a_row_without_one(
    make: Make, kind: LakeFormat
) -> None:
    applier = make(history=True)
    times = [pa.field(name, UTC_TIME, name == "valid_to") for name in ("valid_from", "valid_to")]
    columns = [pa.field("id", pa.int32(), False), pa.field("name", pa.string(), False)]
    current = pa.field("current", pa.bool_(), False)
    applier.lake.table("items").create(pa.schema([*columns, *times, current]), ("id",))
    applier(put("2", row(2)), put("1", {"id": 1}), put("3", {"id": 3, "name": None}))
    applier(put("2", {"id": 2}, unchanged=["name"]))
    assert names(applier) == ["n", "n"]
    assert applier.reasons == 2 * ["name has no value, and the table requires one"]
    with pytest.raises(CannotApply, match="The row '4' has no value for name, which the table"):
        applier(put("4", {"id": 4}, unchanged=["name"]))


def test_columns_have_the_types_of_their_source_and_values_those_of_columns(make: Make) -> None:
    applier = make(keys=())
    kinds = {
        "id": "bigint", "small": "smallint", "exact": "numeric(12,3)", "wide": "numeric",
        "real": "real", "yes": "boolean", "raw": "bytea", "day": "date",
        "at": "timestamp(3) with time zone", "local": "timestamp without time zone",
        "tags": "text[]", "doc": "jsonb", "mood": "mood", "other": "character varying(20)",
    }  # fmt: skip
    value = {
        "id": 2**60, "small": -3, "exact": "1.0005", "wide": "1e-20", "real": "NaN",
        "yes": True, "raw": "\\x00ff", "day": "2026-01-02", "at": "2026-01-02 03:04:05.5+02",
        "local": "2026-01-02 03:04:05", "tags": ["a", None, 'b"'], "doc": {"a": [1]},
        "mood": "so so", "other": 7,
    }  # fmt: skip
    applier(schema(*(f"{name} {kind}" for name, kind in kinds.items())))
    applier(put(str(2**60), value))
    (found,) = applier.dicts()
    assert found.pop("real") != found["id"], "NaN is no number, so it is not equal to itself"
    assert found == {
        "id": 2**60, "small": -3, "exact": Decimal("1.001"), "wide": "1e-20", "yes": True,
        "raw": b"\x00\xff", "day": date(2026, 1, 2),
        "at": datetime(2026, 1, 2, 1, 4, 5, 500_000, UTC),
        "local": datetime(2026, 1, 2, 3, 4, 5), "tags": ["a", None, 'b"'], "doc": '{"a": [1]}',
        "mood": "so so", "other": "7",
    }  # fmt: skip
    applier(gone(str(2**60)))
    assert (applier.rows(), applier.reasons) == ([], [])


@pytest.mark.parametrize(
    ("type_", "texts"),
    [
        ("bigint", ["-1", "7"]), ("text", ["", "a/%"]), ("boolean", ["true", "false"]),
        ("date", ["2026-01-01", "2026-01-02"]), ("numeric(6,2)", ["1.50", "-2.00"]),
        ("timestamp with time zone", ["2026-01-01 00:00:00+00", "2026-01-01 00:00:00.5+00"]),
        ("timestamp", ["2026-01-01 00:00:00", "2026-01-02 00:00:00"]),
        ("bytea", ["\\x00", "\\xff"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("history", [False, True])
def test_a_key_may_be_of_any_plain_type(
    make: Make, type_: str, texts: list[str], history: bool
) -> None:
    applier = make(keys=(), history=history)
    applier(schema(f"k {type_}", "n integer", "v text", keys=("k", "n")))
    keys = [key_text([text, str(n)]) for text in texts for n in range(2)]
    rows = [{"k": text, "n": n} for text in texts for n in range(2)]
    applier(*(put(key, row | {"v": "old"}) for key, row in zip(keys, rows, strict=True)))
    applier(put(keys[0], rows[0], unchanged=["v"]), put(keys[1], rows[1]), gone(keys[2]))
    current = [row for row in applier.dicts() if row.get("current", True)]
    assert sorted((row["n"], row["v"] or "") for row in current) == [
        (0, "old"),
        (1, ""),
        (1, "old"),
    ]
    assert len(applier.dicts()) == (6 if history else 3)


def test_a_stored_row_is_found_in_whichever_file_it_is(make: Make, kind: LakeFormat) -> None:
    """Bounds of texts may be cut, and a merged file has others."""
    applier = make(keys=())
    applier(schema("id text", "n integer", "v text"))
    long = "é" * 100
    texts = ["", "a", long + "a", long + "b", "z"]
    for text in texts:
        applier(put(key_text([text]), {"id": text, "n": 1, "v": "old"}))
    for number in range(2):
        for text in texts:
            change = {"id": text, "n": number + 2}
            applier(put(key_text([text]), change, unchanged=["v"]))
        applier.lake.table("items").merge_files()
    assert applier.rows() == [(text, 3, "old") for text in sorted(texts)]


def test_many_keys_at_once_are_found_by_their_bounds(make: Make) -> None:
    applier = make(history=True)
    applier(*(put(str(n), row(n)) for n in range(600)))
    applier(*(put(str(n), row(n, "new")) for n in range(0, 600, 2)))
    current = [row["id"] for row in applier.dicts() if row["current"]]
    assert (len(applier.dicts()), sorted(current)) == (900, list(range(600)))


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("integer", 2**31), ("integer", "x"), ("integer", 1.0), ("integer", True),
        ("numeric(4,2)", "100"), ("numeric(4,2)", "NaN"), ("boolean", "maybe"),
        ("date", "infinity"), ("date", "0044-03-15 BC"), ("timestamp with time zone", "never"),
        ("integer[]", [[1]]), ("integer[]", 5), ("bytea", "\\xzz"), ("real", [1]),
    ],
)  # fmt: skip
def test_a_value_that_a_type_does_not_hold_is_set_aside(
    tmp_path: Path, type_: str, value: Any
) -> None:
    applier = LakeApplier(tmp_path, "delta", Rules())
    applier.create("id integer", f"v {type_}")
    applier(put("1", {"id": 1, "v": value}), put("2", {"id": 2, "v": None}))
    assert applier.rows() == [(2, None)]
    (reason,) = applier.reasons
    assert reason.startswith("v: ")
    assert "is not a value of the type" in reason


def test_names_of_columns_may_be_anything(make: Make) -> None:
    applier = make()
    strange = {"id": 1, "Order": 1, 'a"b': 2, "c.d": 3, "e f": 4, "ü": 5, "select": 6, "`": 7}
    applier(put("1", strange))
    applier(put("1", strange | {"ü": 8, "g.h": 9}), put("2", strange | {"id": 2}))
    assert [found["ü"] for found in applier.dicts() if found["id"] == 1] == [8]
    assert {found["c.d"] for found in applier.dicts()} == {3}


def test_only_files_with_changed_rows_are_written_again(make: Make, kind: LakeFormat) -> None:
    applier = make()
    for number in range(4):
        applier(*(put(str(n), row(n)) for n in range(100 * number, 100 * number + 50)))
    before = files_of(applier)
    applier(put("120", row(120, "new")), gone("121"))
    assert len(before & files_of(applier)) == 3
    assert len(applier.rows()) == 199


def test_a_commit_that_fails_leaves_no_files(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    applier = make()
    applier(put("1", row(1)))
    if applier.lake.format == "delta":
        return  # delta-rs leaves them to vacuum
    before = set(applier.lake.root.rglob("*.parquet"))

    def fails(*given: Any, **more: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("pyiceberg.table.Transaction.set_properties", fails)
    with pytest.raises(LakeError, match="has no room"):
        applier(put("2", row(2)))
    assert set(applier.lake.root.rglob("*.parquet")) == before


def test_small_files_are_merged_and_those_of_forgotten_versions_removed(
    make: Make, kind: LakeFormat
) -> None:
    applier = make()
    for number in range(5):
        applier(put(str(number), row(number)), put("0", row(0, str(number))))
    applier.add_column("later text")
    applier(put("9", row(9) | {"later": "x"}))
    rows = applier.rows()
    table = applier.lake.table("items")
    table.merge_files()
    assert (len(files_of(applier)), applier.rows()) == (1, rows)
    applier(put("1", row(1, "after")))
    assert len(applier.rows()) == len(rows)
    if kind == "iceberg":
        for path in applier.lake.root.rglob("*"):
            os.utime(path, (0, 0))
        with table._loaded() as found:  # type: ignore[attr-defined]
            remove_old(found, table.place, datetime.now(UTC) + timedelta(days=8))
        kept = {path.name for path in applier.lake.root.rglob("*.parquet")}
        assert kept == {path.rpartition("/")[2] for path in files_of(applier)}
        applier(put("1", row(1, "and on")))
        assert names(applier)[1] == "and on"


def test_a_snapshot_survives_a_restart_and_leaves_no_files(make: Make) -> None:
    applier = make()
    applier(put("1", row(1)))
    applier(control("snapshot-start"), put("2", row(2)))
    restarted = again(applier)
    restarted(put("3", row(3)))
    restarted(put("3", row(3)), batch=2)
    last = again(restarted)
    last(control("snapshot-end"), put("4", row(4)))
    assert [id_ for id_, _ in last.rows("items", "id", "name")] == [2, 3, 4]


def test_a_history_of_two_batches_is_that_of_one(make: Make, tmp_path: Path) -> None:
    """Wherever a batch ends: between versions, and between a reset and what follows."""
    messages = [
        put("1", row(1, "a"), timestamp="2026-01-01T00:00:00Z"),
        put("1", row(1, "b"), timestamp="2026-01-02T00:00:00Z"),
        put("2", row(2, "c"), timestamp="2026-01-02T00:00:00Z"),
        gone("1", timestamp="2026-01-03T00:00:00Z"),
        control("reset", timestamp="2026-01-04T00:00:00Z") | {
            "headers": {"control": "reset", "timestamp": "2026-01-04T00:00:00Z"}
        },
        put("1", row(1, "d"), timestamp="2026-01-05T00:00:00Z"),
        put("3", row(3, "e"), was="1", timestamp="2026-01-06T00:00:00Z"),
    ]  # fmt: skip
    found = []
    for cut in range(1, len(messages) + 1):
        applier = make(history=True, table=f"t{cut}")
        applier(*messages[:cut])
        if messages[cut:]:
            applier(*messages[cut:])
        columns = ("id", "valid_from", "valid_to", "name", "current")
        found.append(applier.rows(f"t{cut}", *columns))
    assert all(each == found[0] for each in found)
    assert [(name, current) for *_, name, current in found[0]] == [
        ("a", False), ("b", False), ("d", False), ("c", False), ("e", True)
    ]  # fmt: skip


def test_a_reset_of_a_table_that_is_not_there_makes_none(make: Make) -> None:
    applier = make()
    applier(RESET)
    assert not (applier.lake.root / "public").exists()


def files_of(applier: LakeApplier) -> set[str]:
    if applier.lake.format == "delta":
        return set(DeltaTable(str(applier.lake.root / "public" / "items")).file_uris())
    with applier.lake.table("items")._loaded() as table:  # type: ignore[attr-defined]
        return {task.file.file_path for task in table.scan().plan_files()}
