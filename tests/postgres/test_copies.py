"""A table copied again between its changes, and partitions that come and go with rows."""

from __future__ import annotations

import json
import threading

import psycopg
import pytest

from headrace.postgres import changes
from headrace.postgres.changes import ChangeFeed
from headrace.postgres.pgoutput import Change
from headrace.postgres.positions import FeedPosition
from headrace.postgres.slot_names import SlotError
from headrace.postgres.slots import Slot
from headrace.testing.waiting import eventually
from tests.postgres.fixtures import private_postgres
from tests.postgres.test_changes import BOUNDS, ITEMS, Consumer, consuming, execute, value

pytestmark = pytest.mark.slow

Folded = dict[str, dict[str, object]]


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_LOOK_AGAIN_SECS", 0)


def take_all(consumer: Consumer, rows_max: int = 1000) -> list[Change]:
    until = consumer.feed.newest_lsn()
    found: list[Change] = []
    while True:
        batch = consumer.feed.next_batch(
            consumer.at, rows_max=rows_max, bytes_max=1 << 24, wait_secs=0.3, until=until
        )
        if not batch.changes and batch.end == consumer.at:
            return found
        found += batch.changes
        consumer.at = FeedPosition.of(json.loads(json.dumps(batch.end.offset())))


def ops(found: list[Change]) -> list[tuple[str, str, str | None]]:
    return [(change.table.removeprefix("public."), change.op, change.key) for change in found]


def folded(found: list[Change], state: Folded) -> Folded:
    """What a consumer has after these changes, table by table."""
    for change in found:
        rows = state.setdefault(change.table, {})
        if change.op in ("reset", "truncate"):
            rows.clear()
        elif change.op == "delete":
            assert change.key is not None
            rows.pop(change.key, None)
        elif change.op != "schema":
            assert change.key is not None
            rows[change.key] = value(change)
    return state


def in_postgres(url: str, table: str) -> dict[str, object]:
    with psycopg.connect(url) as connection:
        query = f"select id, to_jsonb(t) from {table} t"
        rows = connection.execute(query.encode()).fetchall()
    return {f'{{"id":{row_id}}}': row for row_id, row in rows}


def test_one_table_is_copied_again_and_the_other_goes_on(database: str) -> None:
    execute(
        database,
        ITEMS,
        "create table others (id int primary key)",
        "insert into items values (1, 'a'), (2, 'b')",
        "insert into others values (1)",
    )
    with consuming(database, "items", "others") as consumer:
        take_all(consumer)
        consumer.feed.slot.request_copy("items")
        consumer.feed.slot.request_copy("public.items")
        execute(
            database, "insert into others values (2)", "update items set title = 'c' where id = 1"
        )
        consumer.restart()
        assert ops(take_all(consumer, rows_max=2)) == [
            ("others", "insert", '{"id":2}'),
            ("items", "update", '{"id":1}'),
            ("items", "reset", None),
            ("items", "snapshot", '{"id":2}'),
            ("items", "snapshot", '{"id":1}'),
        ]
        execute(database, "insert into items values (3)", "insert into others values (3)")
        assert ops(take_all(consumer)) == [
            ("items", "insert", '{"id":3}'),
            ("others", "insert", '{"id":3}'),
        ]
        with psycopg.connect(database) as connection:
            left = "select count(*) from pg_class where relname like 'copy_slot_%'"
            assert connection.execute(left).fetchone() == (0,)
            slots = "select count(*) from pg_replication_slots where database = current_database()"
            assert connection.execute(slots).fetchone() == (1,)


def test_what_a_change_of_schema_did_to_untouched_rows_comes_with_a_copy(database: str) -> None:
    execute(database, ITEMS, "insert into items values (1, 'a')")
    with consuming(database, "items") as consumer:
        take_all(consumer)
        execute(database, "alter table items add price numeric(6,2) default 1.5, drop body")
        consumer.feed.slot.request_copy("items")
        found = take_all(consumer)
        assert [change.op for change in found] == ["reset", "schema", "snapshot"]
        columns = [(c["name"], c["type"], c["key"]) for c in value(found[1])["columns"]]
        assert columns == [
            ("id", "integer", True), ("title", "text", False), ("price", "numeric(6,2)", False)
        ]  # fmt: skip
        assert value(found[2]) == {"id": 1, "title": "a", "price": "1.50"}
        execute(database, "insert into items values (2)")
        assert [change.op for change in take_all(consumer)] == ["insert"]


def test_copies_under_writers_leave_no_gap_and_bring_back_nothing_old(database: str) -> None:
    execute(database, ITEMS, "insert into items select n, 'x' from generate_series(1, 300) n")
    written = list[int]()

    def write(first: int) -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            for n in range(first, 5000, 7):
                connection.execute("delete from items where id = %s", (n % 400,))
                connection.execute(
                    "insert into items values (%s, %s) on conflict (id) do update"
                    " set title = excluded.title",
                    (n * 31 % 400, str(n)),
                )
                written.append(n)

    writers = [threading.Thread(target=write, args=(first,)) for first in (0, 3)]
    with consuming(database, "items") as consumer:
        state = folded(take_all(consumer), {})
        for writer in writers:
            writer.start()
        eventually(lambda: len(written) > 20, "rows before the copies")
        for _ in range(3):
            consumer.feed.slot.request_copy("items")
            found = take_all(consumer, rows_max=370)
            assert "reset" in [change.op for change in found]
            folded(found, state)
            consumer.restart()
        for writer in writers:
            writer.join()
        folded(take_all(consumer), state)
        assert state["public.items"] == in_postgres(database, "items")


def test_a_batch_of_a_copy_is_read_again_alike_and_goes_on_after_a_restart(database: str) -> None:
    execute(database, ITEMS, "insert into items select n, 'x' from generate_series(1, 12) n")
    with consuming(database, "items") as consumer:
        take_all(consumer)
        consumer.feed.slot.request_copy("items")
        execute(database, "alter table items add n int")
        found: list[Change] = []
        bounds = BOUNDS | {"rows_max": 10}
        while True:
            batch = consumer.feed.next_batch(consumer.at, **bounds, wait_secs=20)
            execute(database, "update items set title = 'y' where id = 1")
            consumer.restart()
            again = consumer.feed.reread(batch.start, batch.end)
            assert again == batch.changes
            if again and again[-1].op == "update":
                break
            found += again
            consumer.at = batch.end
        assert [change.op for change in found] == ["reset", "schema"] + ["snapshot"] * 12


def test_a_copy_that_a_crash_took_is_made_again() -> None:
    with private_postgres() as server:
        execute(server.url, ITEMS, "insert into items select n from generate_series(1, 20) n")
        with consuming(server.url, "items") as consumer:
            take_all(consumer)
            consumer.feed.slot.request_copy("items")
            planned = consumer.feed.next_batch(
                consumer.at, rows_max=5, bytes_max=1 << 24, wait_secs=20
            )
            assert [change.op for change in planned.changes] == ["reset"] + ["snapshot"] * 4
            server.kill()
            server.start()
            execute(server.url, "insert into items values (21)")
            consumer.restart()
            assert not consumer.feed.reread(planned.start, planned.end)
            consumer.at = planned.end
            found = take_all(consumer)
            assert ops(found)[:2] == [("items", "insert", '{"id":21}'), ("items", "reset", None)]
            assert folded(found, {})["public.items"] == in_postgres(server.url, "items")


def test_a_copy_is_refused_of_a_table_or_a_slot_that_is_not_there(database: str) -> None:
    execute(database, ITEMS)
    slot = Slot(database, "slot_" + database.rpartition("/")[2], ["items"])
    with pytest.raises(SlotError, match=r"no slot slot_.* Run the pipeline once"):
        slot.request_copy("items")
    ChangeFeed(slot).begin()
    with pytest.raises(SlotError, match=r"follows public\.items, but not public\.absent"):
        slot.request_copy("absent")


PARTS = (
    "create table items (id int primary key, title text) partition by range (id)",
    "create table items_a partition of items for values from (0) to (100)",
    "insert into items values (1, 'a')",
)
MADE = "create table items_b partition of items for values from (100) to (200)"
ATTACHED = (
    "create table items_c (id int primary key, title text)",
    "insert into items_c values (201, 'c')",
    "alter table items attach partition items_c for values from (200) to (300)",
)
EMPTY = (
    "create table items_d (id int primary key, title text)",
    "alter table items attach partition items_d for values from (300) to (400)",
)


@pytest.mark.parametrize("in_one", [False, True])
def test_partitions_that_come_or_go_with_rows_are_reported(
    database: str, in_one: bool, caplog: pytest.LogCaptureFixture
) -> None:
    execute(database, *PARTS)
    with consuming(database, "items") as consumer:
        take_all(consumer)
        execute(database, MADE, "insert into items values (101, 'b')", *EMPTY)
        assert [change.op for change in take_all(consumer)] == ["insert"]
        execute(database, *(["begin", *ATTACHED, "commit"] if in_one else ATTACHED))
        (notice,) = take_all(consumer)
        assert (notice.table, notice.op) == ("public.items", "schema")
        assert value(notice)["attached"] == ["public.items_c"]
        assert [column["name"] for column in value(notice)["columns"]] == ["id", "title"]
        assert "headrace pipeline resnapshot --table public.items" in caplog.text
        consumer.restart()
        execute(
            database,
            "alter table items detach partition items_a",
            "drop table items_b",
        )
        (notice,) = take_all(consumer)
        assert sorted(value(notice)["detached"]) == ["public.items_a", "public.items_b"]
        assert take_all(consumer) == []


@pytest.mark.parametrize("how", ["truncate items_a", "vacuum full items_a"])
def test_a_truncate_of_one_partition_is_reported_and_so_is_what_looks_like_one(
    database: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    execute(database, *PARTS, MADE)
    with consuming(database, "items") as consumer:
        take_all(consumer)
        execute(database, how, "insert into items values (2, 'b')")
        found = take_all(consumer)
        assert [change.op for change in found] == ["insert", "schema"]
        assert value(found[1])["truncated"] == ["public.items_a"]
        assert "truncated or rewritten (public.items_a)" in caplog.text
        assert take_all(consumer) == []


def test_a_table_with_a_truncated_partition_is_copied_again_on_request(database: str) -> None:
    execute(database, *PARTS, MADE, "insert into items values (101, 'b')")
    with consuming(database, "items", on_partitions="resnapshot") as consumer:
        state = folded(take_all(consumer), {})
        execute(database, "truncate items_a", "insert into items values (2, 'c')")
        assert folded(take_all(consumer), state)["public.items"] == in_postgres(database, "items")


def test_partitions_noted_by_an_earlier_version_are_not_taken_for_truncated(database: str) -> None:
    execute(database, *PARTS)
    with consuming(database, "items") as consumer:
        take_all(consumer)
        execute(
            database,
            "update headrace.partitions set parts = (select jsonb_object_agg(key, value->0)"
            " from jsonb_each(parts))",
            "alter table headrace.copies drop shape, drop key_names",
        )
        consumer.restart()
        assert take_all(consumer) == []


@pytest.mark.parametrize("restarted", [False, True])
def test_a_change_of_columns_is_reported_before_the_tables_next_row(
    database: str, restarted: bool
) -> None:
    execute(database, ITEMS, "insert into items values (1)")
    with consuming(database, "items") as consumer:
        take_all(consumer)
        execute(database, "insert into items values (2)", "alter table items add column n int")
        if restarted:
            consumer.restart()
        insert, notice = take_all(consumer)
        assert (insert.op, notice.op) == ("insert", "schema")
        names = [column["name"] for column in value(notice)["columns"]]
        assert names == ["id", "title", "body", "n"]
        execute(database, "insert into items values (3, 'c', null, 7)")
        assert [(change.op, value(change)["n"]) for change in take_all(consumer)] == [("insert", 7)]
        execute(database, "alter table items rename n to m", "insert into items values (4)")
        assert [change.op for change in take_all(consumer)] == ["schema", "insert"]
        assert take_all(consumer) == []


def test_tables_of_every_kind_are_described_alike_by_the_catalog_and_by_the_log(
    database: str,
) -> None:
    """Else every look would find another shape, and report it."""
    kinds = {
        "plain": "(id int primary key, d numeric(10, 2), v varchar(7)[])",
        "parts": "(id int, n int, primary key (id, n)) partition by range (id)",
        "made": "(id int primary key, twice int generated always as (id * 2) stored, n int)",
        "whole": "(a int, b text)",
        "dropped": "(gone int, id int primary key, n int)",
        '"Odd Name"': '(id int primary key, "Odd Column" bit(3))',
    }
    execute(
        database,
        *(f"create table {name} {columns}" for name, columns in kinds.items()),
        "create table parts_a (n int not null, other int, id int not null)",
        "alter table parts_a drop other",
        "alter table parts attach partition parts_a for values from (0) to (100)",
        "alter table whole replica identity full",
        "alter table dropped drop gone",
    )
    names = [name.strip('"') for name in kinds]
    with consuming(database, *names) as consumer:
        take_all(consumer)
        execute(
            database,
            "insert into plain values (1)",
            "insert into parts values (1, 1)",
            "insert into made values (1)",
            "insert into whole values (1)",
            "insert into dropped values (1)",
            'insert into "Odd Name" values (1)',
        )
        assert [change.op for change in take_all(consumer)] == 6 * ["insert"]
        consumer.restart()
        assert take_all(consumer) == []


@pytest.mark.parametrize("how", ["truncate", "copy", "loss"])
def test_a_consumer_that_cannot_reset_is_refused_what_asks_it_to(database: str, how: str) -> None:
    """As with a stream for each row: those of deleted rows would live on without a word."""
    execute(database, ITEMS, "insert into items values (1)")
    with consuming(database, "items", may_reset=False) as consumer:
        take_all(consumer)
        if how == "truncate":
            execute(database, "truncate items")
        elif how == "copy":
            consumer.feed.slot.request_copy("items")
        else:
            execute(database, "drop table items", ITEMS)
        execute(database, "insert into items values (2)")
        for _ in range(2):
            with pytest.raises(SlotError, match=r"deleted ones would live on.*delete these str"):
                take_all(consumer)
            consumer.restart()
        assert consumer.at.generation == 0


def test_a_table_whose_partitions_moved_is_copied_again_on_request(database: str) -> None:
    execute(database, *PARTS)
    with consuming(database, "items", on_partitions="resnapshot") as consumer:
        take_all(consumer)
        execute(database, *ATTACHED, "alter table items detach partition items_a")
        execute(database, "insert into items values (202, 'd')")
        found = take_all(consumer)
        assert folded(found, {})["public.items"] == in_postgres(database, "items")
        assert take_all(consumer) == []
