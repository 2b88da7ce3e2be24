"""The change feed against a real Postgres: every change once, whatever happens in between."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headrace.postgres import changes
from headrace.postgres.changes import Batch, ChangeFeed
from headrace.postgres.pgoutput import Change
from headrace.postgres.positions import FeedPosition
from headrace.postgres.replication import Replication
from headrace.postgres.server import PostgresServer
from headrace.postgres.sink import SinkTarget, write
from headrace.postgres.slot_names import SlotError
from headrace.postgres.slots import Generation, Slot
from headrace.postgres.staging import Staging
from headrace.testing.waiting import eventually
from tests.postgres.fixtures import UNSYNCED, private_postgres

pytestmark = pytest.mark.slow

BOUNDS = {"rows_max": 1000, "bytes_max": 1 << 24}
ITEMS = "create table items (id int primary key, title text, body text)"


def execute(url: str, *queries: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for query in queries:
            connection.execute(query.encode())


class Consumer:
    """Takes batches and remembers only its position, as Spark does."""

    def __init__(self, url: str, slot: str, tables: list[str], **options: Any) -> None:
        self._slot, self._options = Slot(url, slot, tables), options
        self.feed = self._make()
        self.at = self.feed.begin()
        self.taken: list[Change] = []

    def _make(self) -> ChangeFeed:
        return ChangeFeed(self._slot, retry_secs=30, **self._options)

    def restart(self) -> None:
        self.feed.close()
        self.feed = self._make()
        self.at = FeedPosition.of(json.loads(json.dumps(self.at.offset())))

    def take(self, rows: int, *, batch: int = 1000) -> list[Change]:
        """Batches until `rows` more changes are here."""
        fresh: list[Change] = []
        while len(fresh) < rows:
            found = self.feed.next_batch(self.at, rows_max=batch, bytes_max=1 << 24, wait_secs=20)
            assert found.changes, f"only {len(fresh)} of {rows} changes came"
            fresh += found.changes
            self.at = found.end
        self.taken += fresh
        return fresh

    def is_quiet(self) -> bool:
        found = self.feed.next_batch(self.at, rows_max=10, bytes_max=1 << 20, wait_secs=0.3)
        # The first batch of all, empty or not, says whose the position is.
        end = replace(found.end, owner=self.at.owner, system=self.at.system)
        return not found.changes and end == self.at


@contextmanager
def consuming(url: str, *tables: str, **options: Any) -> Iterator[Consumer]:
    name = "slot_" + url.rpartition("/")[2]
    consumer = Consumer(url, name, list(tables), **options)
    try:
        yield consumer
    finally:
        consumer.feed.close()


def value(change: Change) -> dict[str, Any]:
    assert change.value is not None
    row: dict[str, Any] = json.loads(change.value)
    return row


def test_rows_before_and_after_the_slot_come_once_under_writers(database: str) -> None:
    execute(database, ITEMS)
    stop = threading.Event()
    written: list[int] = []

    def insert(first: int) -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            number = first
            while not stop.is_set():
                connection.execute("insert into items values (%s, 'x')", (number,))
                written.append(number)
                number += 4

    writers = [threading.Thread(target=insert, args=(first,)) for first in range(4)]
    for writer in writers:
        writer.start()
    eventually(lambda: len(written) >= 200, "rows before the slot")
    with consuming(database, "items") as consumer:
        seen = len(written)
        eventually(lambda: len(written) >= seen + 200, "rows after the slot")
        stop.set()
        for writer in writers:
            writer.join()
        consumer.take(len(written), batch=97)
        assert sorted(value(change)["id"] for change in consumer.taken) == sorted(written)
        assert {change.op for change in consumer.taken} == {"snapshot", "insert"}
        # The last batch may have been full before its transaction ended: then the end comes now.
        found = consumer.feed.next_batch(consumer.at, rows_max=10, bytes_max=1 << 20, wait_secs=0.3)
        assert not found.changes


def test_each_kind_of_change_says_what_happened(database: str) -> None:
    execute(database, ITEMS)
    with consuming(database, "items") as consumer:
        execute(
            database,
            "insert into items values (1, 'a', null)",
            "update items set title = 'b' where id = 1",
            "update items set id = 2 where id = 1",
            "delete from items where id = 2",
            "insert into items values (3, 'c', 'd')",
            "truncate items",
        )
        insert, update, rekey, delete, _, truncate = consumer.take(6)
    assert (insert.table, insert.op, insert.key) == ("public.items", "insert", '{"id":1}')
    assert value(insert) == {"id": 1, "title": "a", "body": None}
    assert (update.op, update.old, value(update)["title"]) == ("update", None, "b")
    assert (rekey.op, rekey.old, rekey.key) == ("update", '{"id":1}', '{"id":2}')
    assert (delete.op, delete.key, delete.value) == ("delete", '{"id":2}', None)
    assert (truncate.op, truncate.key) == ("truncate", None)


def test_a_large_value_that_did_not_change_is_named_or_filled(database: str) -> None:
    execute(
        database,
        ITEMS,
        "alter table items alter body set storage external",
        "insert into items values (1, 'a', repeat('x', 9000))",
    )
    with consuming(database, "items") as consumer:
        consumer.take(1)
        execute(database, "update items set title = 'b'")
        (partial,) = consumer.take(1)
        assert partial.unchanged == ["body"]
        assert value(partial) == {"id": 1, "title": "b"}
        execute(
            database,
            "alter table items replica identity full",
            "update items set title = 'c'",
        )
        (filled,) = consumer.take(1)
        assert filled.unchanged == []
        assert (filled.key, len(value(filled)["body"])) == ('{"id":1}', 9000)
        assert filled.old is not None
        assert json.loads(filled.old)["title"] == "b"


def test_a_change_of_schema_is_told_once_and_in_place(database: str) -> None:
    execute(database, ITEMS)
    with consuming(database, "items") as consumer:
        execute(
            database,
            "insert into items values (1)",
            "alter table items add column price numeric",
            "insert into items values (2, 'b', null, 1.50)",
        )
        before = consumer.take(3)
        assert [change.op for change in before] == ["insert", "schema", "insert"]
        names = [column["name"] for column in value(before[1])["columns"]]
        assert names == ["id", "title", "body", "price"]
        assert value(before[2])["price"] == "1.50"
        consumer.restart()
        execute(database, "insert into items values (3)")
        assert [change.op for change in consumer.take(1)] == ["insert"]


def test_a_large_transaction_is_cut_into_batches_and_read_again_alike(database: str) -> None:
    execute(database, ITEMS)
    with consuming(database, "items") as consumer:
        execute(
            database,
            "insert into items select n, 'x' from generate_series(1, 250) n",
            "insert into items select n, 'x' from generate_series(251, 260) n",
        )
        start = consumer.at
        batches: list[Batch] = []
        while sum(len(found.changes) for found in batches) < 260:
            found = consumer.feed.next_batch(
                consumer.at, rows_max=100, bytes_max=1 << 24, wait_secs=20
            )
            assert 0 < len(found.changes) <= 100
            batches.append(found)
            consumer.at = found.end
        everything = [value(change)["id"] for found in batches for change in found.changes]
        assert everything == list(range(1, 261))
        consumer.restart()
        for found in batches:
            again = consumer.feed.reread(found.start, found.end)
            assert [change.value for change in again] == [c.value for c in found.changes]
        assert batches[0].start == start
        assert consumer.is_quiet()


def test_a_batch_that_begins_inside_a_transaction_is_filled(database: str) -> None:
    execute(database, ITEMS)
    with consuming(database, "items") as consumer:
        execute(database, "insert into items select n, 't', '' from generate_series(1, 5000) n")
        consumer.take(10, batch=10)
        found = consumer.feed.next_batch(
            consumer.at, rows_max=4000, bytes_max=1 << 24, wait_secs=20
        )
        assert len(found.changes) == 4000


@pytest.mark.parametrize("restarts", [False, True])
def test_a_batch_that_ends_with_its_transaction_loses_nothing_of_the_next(
    database: str, restarts: bool
) -> None:
    """The end of the transaction is then all that comes, and is a position of its own."""
    execute(database, ITEMS)
    with consuming(database, "items") as consumer:
        execute(database, "insert into items select n, 't', '' from generate_series(1, 20) n")
        consumer.take(20, batch=20)
        found = consumer.feed.next_batch(consumer.at, rows_max=20, bytes_max=1 << 24, wait_secs=0.3)
        assert not found.changes
        if restarts:
            consumer.restart()  # before it has written that down
        else:
            consumer.at = found.end
            assert consumer.is_quiet()
        execute(database, "insert into items values (21, 't', '')")
        assert [value(change)["id"] for change in consumer.take(1)] == [21]


def test_behind_a_full_batch_the_next_is_read_while_the_consumer_has_that(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(database, ITEMS)
    receive, read_ahead = Replication.receive_several, threading.Event()

    def noting(reader: Replication, wait_secs: float, *room: int) -> list[bytes]:
        found = receive(reader, wait_secs, *room)
        if found and threading.current_thread() is not threading.main_thread():
            read_ahead.set()
        return found

    monkeypatch.setattr(Replication, "receive_several", noting)
    with consuming(database, "items") as consumer:
        execute(database, "insert into items select n, 't', '' from generate_series(1, 35) n")
        consumer.take(10, batch=10)
        assert read_ahead.wait(20)
        assert [value(change)["id"] for change in consumer.take(20, batch=10)] == list(
            range(11, 31)
        )
        consumer.take(5, batch=10)
        read_ahead.clear()
        execute(database, "insert into items select n, 't', '' from generate_series(36, 39) n")
        consumer.take(4, batch=10)
        assert not read_ahead.is_set(), "there was nothing to read behind a batch with room"


@pytest.mark.parametrize("then", ["another size", "the same again", "read again", "restart"])
def test_what_was_read_ahead_and_is_not_asked_for_comes_later(database: str, then: str) -> None:
    execute(database, ITEMS)
    with consuming(database, "items") as consumer:
        execute(database, "insert into items select n, 't', '' from generate_series(1, 50) n")
        start = consumer.at
        first = consumer.feed.next_batch(start, rows_max=10, bytes_max=1 << 24, wait_secs=20)
        if then == "the same again":
            again = consumer.feed.next_batch(start, rows_max=10, bytes_max=1 << 24, wait_secs=20)
            assert list(again.changes) == list(first.changes)
        elif then == "read again":
            assert consumer.feed.reread(start, first.end) == first.changes
        consumer.at = first.end
        if then == "restart":
            consumer.restart()
        rest = consumer.take(40, batch=3 if then == "another size" else 10)
        assert [value(change)["id"] for change in rest] == list(range(11, 51))


def test_transactions_that_wait_come_together(database: str) -> None:
    """However small each is: a backlog is read at the speed of the reader."""
    execute(database, ITEMS)
    with consuming(database, "items") as consumer:
        execute(database, "insert into items values (0, 't', '')")
        consumer.take(1)
        inserts = [f"insert into items values ({n}, 't', '')" for n in range(1, 1001)]
        execute(database, *inserts)
        with psycopg.connect(database, autocommit=True) as connection:
            sent = (
                "select sent_lsn >= (select pg_current_wal_flush_lsn()) from pg_stat_replication"
                " where application_name = %s"
            )
            name = f"headrace slot_{database.rpartition('/')[2]}"
            eventually(
                lambda: connection.execute(sent, (name,)).fetchone() == (True,),
                "everything sent to the reader",
            )
        found = consumer.feed.next_batch(
            consumer.at, rows_max=5000, bytes_max=1 << 24, wait_secs=20
        )
        assert len(found.changes) == 1000


def test_a_small_bound_in_bytes_ends_a_batch(database: str) -> None:
    execute(database, ITEMS)
    with consuming(database, "items") as consumer:
        execute(
            database, "insert into items select n, repeat('x', 1000) from generate_series(1, 50) n"
        )
        ids: list[int] = []
        while len(ids) < 50:
            found = consumer.feed.next_batch(
                consumer.at, rows_max=1000, bytes_max=9000, wait_secs=20
            )
            assert 0 < len(found.changes) <= 10
            ids += [value(change)["id"] for change in found.changes]
            consumer.at = found.end
        assert ids == list(range(1, 51))


@pytest.mark.parametrize("before", [True, False])
def test_a_row_above_the_bound_is_refused_until_the_bound_is_raised(
    database: str, before: bool
) -> None:
    """It would end the driver for lack of memory, again and again."""
    execute(database, ITEMS)
    enormous = "insert into items select 7, repeat('x', 3000)"
    if before:
        execute(database, enormous)
    with consuming(database, "items", row_bytes_max=2000) as consumer:
        execute(database, *([] if before else ["insert into items values (6)", enormous]))
        refusal = r'of public.items takes 30\d\d .*2000.*key \{"id":7}.*raise row_bytes_max'
        for _ in range(2):
            with pytest.raises(SlotError, match=refusal):
                consumer.take(2)
            consumer.restart()
        consumer._options["row_bytes_max"] = 4000
        consumer.restart()
        assert [value(change)["id"] for change in consumer.take(1)][-1] == 7


def test_wide_rows_of_a_snapshot_are_cut_by_bytes_and_read_again_alike(database: str) -> None:
    execute(
        database,
        ITEMS,
        "insert into items select n, null, repeat('é', 100000) from generate_series(1, 60) n",
    )
    with consuming(database, "items") as consumer:
        ids: list[int] = []
        while len(ids) < 60:
            start = consumer.at
            found = consumer.feed.next_batch(
                start, rows_max=50_000, bytes_max=1_000_000, wait_secs=20
            )
            assert 0 < len(found.changes) <= 5, "200 kB each, in bytes and not in characters"
            consumer.restart()
            assert consumer.feed.reread(start, found.end) == found.changes
            ids += [value(change)["id"] for change in found.changes]
            consumer.at = found.end
        assert ids == list(range(1, 61))


def test_a_snapshot_with_columns_has_them_before_the_rows_of_each_table_and_again_alike(
    database: str,
) -> None:
    execute(
        database,
        ITEMS,
        "insert into items select n, 'x' from generate_series(1, 3) n",
        "create table empty (b int, a int, primary key (b, a))",
        "create table bare (a int, b int); alter table bare replica identity full",
    )
    tables = ["items", "empty", "bare"]
    slot = Slot(database, "slot_" + database.rpartition("/")[2], tables, with_columns=True)
    feed = ChangeFeed(slot)
    at, taken = feed.begin(), list[Change]()
    for _ in range(3):
        batch = feed.next_batch(at, rows_max=2, bytes_max=1 << 20, wait_secs=0)
        if not taken:
            execute(database, "alter table items add column later int")
        assert feed.reread(batch.start, batch.end) == batch.changes
        at = batch.end
        taken += batch.changes
    feed.close()
    items, empty, bare = [change for change in taken if change.op == "schema"]
    told = [(change.table, change.op) for change in taken]
    assert told == [
        ("public.items", "schema"), *(3 * [("public.items", "snapshot")]),
        ("public.empty", "schema"), ("public.bare", "schema"),
    ]  # fmt: skip
    assert "later" not in [column["name"] for column in value(items)["columns"]]
    assert [column["key"] for column in value(empty)["columns"]] == [True, True]
    assert "primary_key" not in value(empty)
    assert value(bare)["primary_key"] is False


def test_reading_wide_rows_of_a_snapshot_holds_few_of_them(database: str) -> None:
    execute(
        database,
        ITEMS,
        "insert into items select n, null, repeat('x', 1000000) from generate_series(1, 100) n",
    )
    with consuming(database, "items") as consumer:
        tracemalloc.start()
        try:
            consumer.feed.next_batch(consumer.at, rows_max=50_000, bytes_max=1, wait_secs=20)
            _, most_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most_bytes < 20_000_000


def test_a_snapshot_in_batches_goes_on_after_a_restart(database: str) -> None:
    execute(database, ITEMS, "insert into items select n, 'x' from generate_series(1, 25) n")
    with consuming(database, "items") as consumer:
        consumer.take(10, batch=10)
        execute(database, "update items set title = 'y'")
        consumer.restart()
        rest = consumer.take(40, batch=10)
        assert [change.op for change in rest] == ["snapshot"] * 15 + ["update"] * 25
        assert {value(change)["title"] for change in rest[:15]} == {"x"}
        with psycopg.connect(database) as connection:
            left = connection.execute(
                "select count(*) from pg_class where relname like 'snapshot_%%'"
            ).fetchone()
        assert left == (0,)


def write_as(url: str, origin: str, *queries: str) -> None:
    """As a session that has a replication origin, such as a logical subscription's."""
    with psycopg.connect(url) as connection:
        known = "select 1 from pg_replication_origin where roname = %s"
        if connection.execute(known, (origin,)).fetchone() is None:
            connection.execute("select pg_replication_origin_create(%s)", (origin,))
            connection.commit()
        connection.execute("select pg_replication_origin_session_setup(%s)", (origin,))
        for query in queries:
            connection.execute(query.encode())


@pytest.mark.parametrize(
    ("origin", "expected"), [("others", [2, 3, 6]), ("any", [1, 2, 3, 4, 5, 6]), ("none", [3, 6])]
)
def test_only_what_our_sink_wrote_is_left_out(
    database: str, origin: str, expected: list[int]
) -> None:
    execute(database, ITEMS)
    with consuming(database, "items", origin=origin) as consumer:
        _sink(database, "headrace", 1)
        write_as(database, "subscriber", "insert into items values (2)")
        execute(database, "insert into items values (3)")
        _sink(database, "ours", 4)
        _sink(database, "headrace", 5)
        execute(database, "insert into items values (6)")
        taken = consumer.take(len(expected))
        assert [value(change)["id"] for change in taken] == expected
        assert consumer.is_quiet()


def _sink(url: str, origin: str, row_id: int) -> None:
    rows = pa.RecordBatch.from_pydict({"id": pa.array([row_id], pa.int32())})
    write(SinkTarget(url, "items", ("id",), origin=origin), None, [rows])


def test_a_sink_that_writes_without_a_pause_neither_holds_up_a_batch_nor_the_log(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(database, ITEMS)
    left_out = 0
    with consuming(database, "items") as consumer:
        assert consumer.is_quiet()
        feed, receive = consumer.feed, Replication.receive_several

        def after_one_more(reader: Replication, wait_secs: float, *room: int) -> list[bytes]:
            nonlocal left_out
            if left_out < 40:
                left_out += 1
                write_as(database, "headrace_0", f"insert into items values ({left_out})")
            return receive(reader, max(wait_secs, 20.0) if left_out < 40 else wait_secs, *room)

        monkeypatch.setattr(Replication, "receive_several", after_one_more)
        found = feed.next_batch(consumer.at, **BOUNDS, wait_secs=0)
        assert not found.changes
        assert left_out < 40, "it did not wait for the end of what is left out"
        while left_out < 40 or feed.slot.health().lag_bytes > 1000:
            assert not feed.next_batch(consumer.at, **BOUNDS, wait_secs=0.1).changes
        execute(database, "insert into items values (100)")
        assert [value(change)["id"] for change in consumer.take(1)] == [100]


def test_the_slot_follows_what_the_consumer_has_and_lets_idle_log_go(database: str) -> None:
    execute(database, ITEMS, "create table busy (n int)")
    with consuming(database, "items") as consumer:
        execute(database, "insert into items values (1)")
        consumer.take(1)
        execute(database, "insert into busy select generate_series(1, 10000)")
        while consumer.feed.slot.health().lag_bytes > 5000:
            assert consumer.is_quiet()
        assert consumer.feed.slot.health().status == "reserved"


def test_a_consumer_that_stopped_before_its_first_change_misses_none(database: str) -> None:
    execute(database, ITEMS)
    with consuming(database, "items") as first:
        assert first.is_quiet()
    execute(database, "insert into items values (1)", "delete from items")
    with consuming(database, "items") as second:
        assert [change.op for change in second.take(2)] == ["insert", "delete"]


def test_a_table_whose_updates_would_fail_is_refused(database: str) -> None:
    execute(database, "create table keyless (n int)")
    with pytest.raises(SlotError, match="replica identity full"), consuming(database, "keyless"):
        pass
    with pytest.raises(SlotError, match="no table"), consuming(database, "absent"):
        pass


def test_a_dead_reader_does_not_keep_the_slot(database: str) -> None:
    execute(database, ITEMS)
    with consuming(database, "items") as consumer:
        assert consumer.is_quiet()
        zombie = consumer.feed  # still connected
        consumer.feed = ChangeFeed(zombie.slot)
        execute(database, "insert into items values (1)")
        assert len(consumer.take(1)) == 1
        zombie.close()


def test_a_lost_slot_is_followed_by_a_reset_and_a_fresh_snapshot() -> None:
    settings = UNSYNCED | {"max_slot_wal_keep_size": "32MB", "max_wal_size": "32MB"}
    with private_postgres(settings) as server:
        url = server.url
        execute(url, ITEMS, "insert into items values (1), (2)")
        with consuming(url, "items") as consumer:
            consumer.take(2)
            assert consumer.is_quiet()
            consumer.feed.close()
            _outrun(server, consumer.feed.slot)
            execute(url, "delete from items where id = 1", "insert into items values (3)")
            consumer.restart()
            ops = [(change.op, change.key) for change in consumer.take(3)]
            assert ops[0] == ("reset", None)
            assert sorted(ops[1:]) == [("snapshot", '{"id":2}'), ("snapshot", '{"id":3}')]
            execute(url, "insert into items values (4)")
            assert [value(change)["id"] for change in consumer.take(1)] == [4]


def _outrun(server: PostgresServer, slot: Slot) -> None:
    """Write log until Postgres gives up on the slot."""
    while not slot.health().is_lost:
        execute(
            server.url,
            "create table if not exists filler (t text)",
            "insert into filler select repeat('x', 1000) from generate_series(1, 20000)",
            "select pg_switch_wal()",
            "checkpoint",
        )


def test_an_unbounded_slot_is_refused() -> None:
    with private_postgres(UNSYNCED | {"max_slot_wal_keep_size": "-1"}) as server:
        execute(server.url, ITEMS)
        with pytest.raises(SlotError, match="max_slot_wal_keep_size"):
            ChangeFeed(Slot(server.url, "unbounded", ["items"])).begin()


def test_the_feed_outlasts_a_crash_of_postgres() -> None:
    with private_postgres(UNSYNCED) as server:
        execute(server.url, ITEMS)
        with consuming(server.url, "items") as consumer:
            execute(server.url, "insert into items values (1)")
            consumer.take(1)
            server.kill()
            server.start()
            execute(server.url, "insert into items values (2)")
            assert [value(change)["id"] for change in consumer.take(1)] == [2]


def changes_after(consumer: Consumer, start: FeedPosition) -> list[tuple[str, str | None]]:
    """All that Postgres has by now, however long it takes to send it."""
    until = consumer.feed.newest_lsn()
    found: list[Change] = []
    while True:
        batch = consumer.feed.next_batch(
            start, rows_max=100, bytes_max=1 << 24, wait_secs=0.5, until=until
        )
        if batch.end == start:
            return [(change.op, change.key) for change in found]
        found += batch.changes
        start = batch.end


def nobody_reads(database: str) -> bool:
    query = "select from pg_replication_slots where database = current_database() and active"
    with psycopg.connect(database) as connection:
        return connection.execute(query.encode()).fetchone() is None


def test_a_recovery_that_fails_while_it_copies_begins_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot without its snapshot must not be taken for the one that was lost."""
    execute(database, ITEMS, "insert into items values (1), (2)")
    with consuming(database, "items") as consumer:
        consumer.take(2)
        assert consumer.is_quiet()
        consumer.feed.close()
        eventually(lambda: nobody_reads(database), "Postgres has noticed that the reader is gone")
        execute(
            database,
            f"select pg_drop_replication_slot('{consumer.feed.slot.name}')",
            "delete from items where id = 1",
            "insert into items values (3)",
        )
        stage, failed = Slot._stage, list[str]()

        def fails_once(slot: Slot, *given: Any) -> Generation:
            if not failed:
                failed.append(slot.name)
                raise psycopg.OperationalError("the connection was ended")
            return stage(slot, *given)

        monkeypatch.setattr(Slot, "_stage", fails_once)
        consumer.restart()
        assert changes_after(consumer, consumer.at) == [
            ("reset", None), ("snapshot", '{"id":2}'), ("snapshot", '{"id":3}')
        ]  # fmt: skip
        assert failed


def test_a_table_that_is_rewritten_while_it_is_copied_is_copied_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = "create table others (id int primary key)"
    execute(database, ITEMS, others, "insert into others values (1), (2)")
    add_rows, rewritten = Staging.add_rows, list[str]()

    def slow(staging: Staging, connection: psycopg.Connection, table: str, first: int) -> int:
        rows = add_rows(staging, connection, table, first)
        if table == "public.items" and not rewritten:
            rewritten.append(table)
            execute(database, "alter table others alter column id type bigint")
        return rows

    monkeypatch.setattr(Staging, "add_rows", slow)
    with consuming(database, "items", "others") as consumer:
        assert [change.key for change in consumer.take(2)] == ['{"id":1}', '{"id":2}']
        assert rewritten


@pytest.mark.parametrize("drops", [False, True])
def test_a_snapshot_keeps_the_columns_it_was_taken_with(database: str, drops: bool) -> None:
    execute(database, ITEMS, "insert into items values (1, 't1', 'b1'), (2, 't2', 'b2')")
    with consuming(database, "items") as consumer:
        consumer.take(1, batch=1)
        if drops:
            execute(database, "alter table items drop column title")
        execute(
            database,
            "alter table items add column price text",
            "insert into items (id, price) values (3, 'p')",
        )
        assert value(consumer.take(1, batch=1)[0]) == {"id": 2, "title": "t2", "body": "b2"}
        schema, inserted = consumer.take(2)
        assert schema.op == "schema"
        assert value(inserted)["price"] == "p"


def test_a_batch_inside_a_transaction_that_alters_a_table_is_read_again_alike(
    database: str,
) -> None:
    execute(database, ITEMS)
    with consuming(database, "items") as consumer:
        with psycopg.connect(database) as connection:
            connection.execute("insert into items values (1)")
            connection.execute("alter table items add column price text")
            connection.execute("insert into items values (2)")
            connection.execute("insert into items values (3)")
        first = consumer.feed.next_batch(consumer.at, rows_max=3, bytes_max=1 << 24, wait_secs=20)
        assert [change.op for change in first.changes] == ["insert", "schema", "insert"]
        second = consumer.feed.next_batch(first.end, rows_max=9, bytes_max=1 << 24, wait_secs=20)
        assert [change.op for change in second.changes] == ["insert"]
        consumer.restart()
        assert consumer.feed.reread(first.start, first.end) == first.changes
        consumer.restart()
        assert consumer.feed.reread(second.start, second.end) == second.changes


def test_a_slot_that_is_lost_without_a_snapshot_to_go_on_from_is_an_error(database: str) -> None:
    execute(database, ITEMS)
    slot = Slot(database, "lost_" + database.rpartition("/")[2], ["items"], snapshot=False)
    feed = ChangeFeed(slot)
    start = feed.begin()
    feed.close()
    eventually(lambda: nobody_reads(database), "Postgres has noticed that the reader is gone")
    execute(database, f"select pg_drop_replication_slot('{slot.name}')")
    with pytest.raises(SlotError, match="is lost"):
        ChangeFeed(slot).next_batch(start, rows_max=9, bytes_max=1 << 24, wait_secs=0)


def test_a_table_that_was_made_again_is_copied_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres tells nothing of it: it is no longer in the publication."""
    monkeypatch.setattr(changes, "_LOOK_AGAIN_SECS", 0)
    execute(database, ITEMS, "insert into items values (1)")
    with consuming(database, "items") as consumer:
        consumer.take(1)
        assert consumer.is_quiet()
        execute(database, "drop table items", ITEMS, "insert into items values (2)")
        assert [(change.op, change.key) for change in consumer.take(2)] == [
            ("reset", None),
            ("snapshot", '{"id":2}'),
        ]
        execute(database, "insert into items values (3)")
        assert [change.key for change in consumer.take(1)] == ['{"id":3}']
        execute(database, "drop table items")
        with pytest.raises(SlotError, match=r"There is no table public\.items"):
            consumer.take(1)


def test_where_what_was_kept_of_a_slot_is_gone_all_is_copied_again(database: str) -> None:
    execute(database, ITEMS, "insert into items values (1)")
    with consuming(database, "items") as consumer:
        consumer.take(1)
        execute(database, "insert into items values (2)", "drop schema headrace cascade")
        consumer.restart()
        assert [(change.op, change.key) for change in consumer.take(3)] == [
            ("reset", None),
            ("snapshot", '{"id":1}'),
            ("snapshot", '{"id":2}'),
        ]


def test_tables_in_another_order_are_the_same_and_others_are_refused(database: str) -> None:
    execute(database, ITEMS, "create table more (id int primary key)")
    with consuming(database, "items", "more") as consumer:
        execute(database, "insert into items values (1)")
        consumer.take(1)
        at, name = consumer.at, consumer.feed.slot.name
    turned = ChangeFeed(Slot(database, name, ["more", "items"]))
    assert not turned.next_batch(at, rows_max=9, bytes_max=1 << 24, wait_secs=0).changes
    turned.close()
    with pytest.raises(SlotError, match=r"follows public\.items, public\.more and cannot continue"):
        ChangeFeed(Slot(database, name, ["items"])).next_batch(
            at, rows_max=9, bytes_max=1 << 24, wait_secs=0
        )


def test_a_slot_that_had_a_snapshot_may_be_begun_without(database: str) -> None:
    execute(database, ITEMS, "insert into items values (1), (2)")
    with consuming(database, "items") as consumer:
        consumer.take(2)
        assert consumer.is_quiet()
        name = consumer.feed.slot.name
    execute(database, "update headrace.slots set owner = null")
    feed = ChangeFeed(Slot(database, name, ["items"], snapshot=False))
    start = feed.begin()
    execute(database, "insert into items values (3)")
    found = feed.next_batch(start, rows_max=9, bytes_max=1 << 24, wait_secs=20)
    feed.close()
    assert [change.key for change in found.changes] == ['{"id":3}']


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        (["create table items (id int primary key, t text) partition by range (id)",
          "create table items_a partition of items for values from (0) to (100)"], '{"id":1}'),
        (["create table items (id int, t text, primary key (id) include (t))"], '{"id":1}'),
        (["create table items (id int, t text)", "alter table items replica identity full"],
         '{"id":1,"t":"a"}'),
    ],
)  # fmt: skip
def test_a_row_has_one_table_and_one_key_in_snapshot_and_log(
    database: str, tables: list[str], key: str
) -> None:
    execute(database, *tables, "insert into items values (1, 'a')")
    with consuming(database, "items") as consumer:
        taken = consumer.take(1)
        execute(database, "delete from items", "insert into items values (1, 'a')")
        taken += consumer.take(2)
        assert [change.op for change in taken] == ["snapshot", "delete", "insert"]
        assert {(change.table, change.key) for change in taken} == {("public.items", key)}


def test_types_that_users_made_keep_their_type(database: str) -> None:
    execute(
        database,
        "create type mood as enum ('sad', 'so \"so\"')",
        "create domain counted as int check (value >= 0)",
        "create domain recounted as counted",
        "create domain moods as mood[]",
        "create type pair as (a int, b text)",
        "create table items (id counted primary key, m mood[], n recounted[], d moods, p pair[],"
        " r int4range[], f float8[])",
    )
    row = (
        "array['sad', 'so \"so\"']::mood[], '{{1,2},{3,null}}', '{sad}', array[(1, 'x,y')::pair],"
        " array[int4range(1, 3)], '{NaN,1.5}'"
    )
    execute(database, f"insert into items values (1, {row})")
    with consuming(database, "items") as consumer:
        execute(database, f"insert into items values (2, {row})")
        for number, change in enumerate(consumer.take(2), 1):
            assert value(change) == {
                "id": number,
                "m": ["sad", 'so "so"'],
                "n": [[1, 2], [3, None]],
                "d": ["sad"],
                "p": ['(1,"x,y")'],
                "r": ["[1,3)"],
                "f": ["NaN", 1.5],
            }
            assert change.key == f'{{"id":{number}}}'


@pytest.mark.parametrize("renames", [["item_id"], ["item_no", "item_id"]])
def test_a_key_that_is_renamed_while_nobody_reads_stays_the_key(
    database: str, renames: list[str]
) -> None:
    execute(database, ITEMS, "alter table items replica identity full")
    with consuming(database, "items") as consumer:
        execute(database, "insert into items values (1, 'a')")
        consumer.take(1)
        consumer.feed.close()
        names, found = ["id", *renames], []
        for number, name in enumerate(names, 2):
            execute(
                database,
                f"insert into items values ({number}, 'a')",
                f"delete from items where {name} = {number}",
            )
            if name != names[-1]:
                execute(database, f"alter table items rename {name} to {names[number - 1]}")
            found += [f'{{"{name}":{number}}}'] * 2
        consumer.restart()
        taken = consumer.take(3 * len(names) - 1)
        assert [change.key for change in taken if change.op != "schema"] == found


def test_a_table_without_a_key_is_refused_where_rows_must_have_one(database: str) -> None:
    execute(database, "create table items (n int)", "alter table items replica identity full")
    with pytest.raises(SlotError, match=r"public\.items has no primary key.*withoutKey"):
        ChangeFeed(Slot(database, "keyed", ["items"], needs_key=True)).begin()
    ChangeFeed(Slot(database, "keyless", ["items"])).begin()


def test_a_large_key_is_told_with_an_update_that_leaves_it(database: str) -> None:
    execute(
        database,
        "create table items (id text primary key, n int)",
        "alter table items alter column id set storage external",
    )
    with consuming(database, "items") as consumer:
        execute(
            database,
            "insert into items values (repeat('0123456789abcdef', 150), 1)",
            "update items set n = 2",
        )
        inserted, updated = consumer.take(2)
        assert updated.op == "update"
        assert updated.key == inserted.key
        assert value(updated) == value(inserted) | {"n": 2}
