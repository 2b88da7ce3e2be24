"""A slot against a real Postgres: who may read it, and which position in it may be trusted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace

import psycopg
import pytest

from headrace.postgres import changes
from headrace.postgres.changes import ChangeFeed
from headrace.postgres.pgoutput import lsn_text
from headrace.postgres.positions import FeedPosition
from headrace.postgres.server import PostgresServer
from headrace.postgres.slot_names import SlotError
from headrace.postgres.slots import Slot
from tests.postgres.fixtures import UNSYNCED, private_postgres
from tests.postgres.test_changes import BOUNDS, ITEMS, Consumer, consuming, execute, value

pytestmark = pytest.mark.slow


def name_of(database: str) -> str:
    return "slot_" + database.rpartition("/")[2]


def test_a_second_consumer_of_a_slot_is_refused_and_the_first_misses_nothing(
    database: str,
) -> None:
    execute(database, ITEMS, "insert into items values (1)")
    with consuming(database, "items") as first:
        first.take(1)
        assert first.is_quiet()
        reader = _reader(database)
        slot = Slot(database, name_of(database), ["items"], consumer="host-b:/state/two")
        with pytest.raises(SlotError, match=r"belongs to another consumer.*set slot") as refused:
            ChangeFeed(slot).begin()
        assert first.at.owner in str(refused.value)
        assert _reader(database) == reader, "the first one's connection was not touched"
        execute(database, "insert into items select n from generate_series(2, 60) n")
        assert [value(change)["id"] for change in first.take(59)] == list(range(2, 61))


def _reader(url: str) -> tuple[object, ...] | None:
    query = "select active_pid from pg_replication_slots where database = current_database()"
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchone()


def test_of_two_that_begin_at_once_one_goes_on(database: str) -> None:
    execute(database, ITEMS)
    slot = Slot(database, name_of(database), ["items"])
    feeds = [ChangeFeed(slot), ChangeFeed(slot)]
    starts = [feed.begin() for feed in feeds]
    ends = [
        feed.next_batch(at, **BOUNDS, wait_secs=0).end
        for feed, at in zip(feeds, starts, strict=True)
    ]
    feeds[1].next_batch(ends[1], **BOUNDS, wait_secs=0)
    with pytest.raises(SlotError, match="belongs to another consumer"):
        feeds[0].next_batch(ends[0], **BOUNDS, wait_secs=0)
    for feed in feeds:
        feed.close()


def test_a_consumer_that_is_killed_again_and_again_in_its_first_batch_begins(
    database: str,
) -> None:
    """Spark asks where to begin until the first batch is committed, and reads that batch again."""
    execute(database, ITEMS, "insert into items values (1)")
    slot = Slot(database, name_of(database), ["items"])
    feed = ChangeFeed(slot)
    start = feed.begin()
    found = feed.next_batch(start, **BOUNDS, wait_secs=20)
    for _ in range(3):
        feed.close()
        feed = ChangeFeed(slot)
        assert feed.begin() == start
        assert feed.reread(start, found.end) == found.changes
    execute(database, "insert into items values (2)")
    following = feed.next_batch(found.end, **BOUNDS, wait_secs=20)
    assert [value(change)["id"] for change in following.changes] == [2]
    feed.close()


def test_a_checkpoint_from_before_there_were_owners_goes_on(database: str) -> None:
    execute(database, ITEMS)
    with consuming(database, "items") as consumer:
        execute(database, "insert into items values (1)")
        consumer.take(1)
        assert consumer.is_quiet()
        old = {"generation": 0, "row": 0, "skip": 0}
        old |= {key: consumer.at.offset()[key] for key in ("lsn", "shapes")}
        consumer.feed.close()
        execute(
            database,
            "alter table headrace.slots drop owner, drop owner_name, drop mark, drop keep_mb,"
            " drop delivered",
            "insert into items values (2)",
        )
        consumer.at = FeedPosition.of(old)
        consumer.restart()
        assert [value(change)["id"] for change in consumer.take(1)] == [2]
        assert consumer.at.owner
        assert consumer.is_quiet()
        with pytest.raises(SlotError, match="belongs to another consumer"):
            ChangeFeed(consumer.feed.slot).next_batch(
                FeedPosition.of(json.loads(json.dumps(old))), **BOUNDS, wait_secs=0
            )


def test_a_slot_whose_owner_is_let_go_of_is_begun_anew(database: str) -> None:
    """What the refusal says to run where a checkpoint is lost."""
    execute(database, ITEMS, "insert into items values (1)")
    with consuming(database, "items") as first:
        first.take(1)
        assert first.is_quiet()
        first.feed.close()
        with pytest.raises(SlotError) as refused:
            Consumer(database, name_of(database), ["items"])
        execute(database, str(refused.value).partition("a query of your own: ")[2])
        with consuming(database, "items") as second:
            assert [change.op for change in second.take(2)] == ["reset", "snapshot"]
            assert second.is_quiet()
        first.restart()
        with pytest.raises(SlotError, match="belongs to another consumer"):
            first.take(1)


def take_all(consumer: Consumer) -> list[tuple[str, str | None]]:
    """All that Postgres has by now, however long it takes to send it."""
    until = consumer.feed.newest_lsn()
    found: list[tuple[str, str | None]] = []
    while True:
        batch = consumer.feed.next_batch(consumer.at, **BOUNDS, wait_secs=0.3, until=until)
        if not batch.changes and batch.end == consumer.at:
            return found
        found += [(change.op, change.key) for change in batch.changes]
        consumer.at = batch.end


RESET = ("reset", None)


@pytest.mark.parametrize("later", ["at once", "when it is past the position", "a new timeline"])
def test_after_a_restore_to_before_the_checkpoint_all_is_copied_again(
    later: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is put back with the slot in it: nothing of Postgres's own tells of it."""
    monkeypatch.setattr(changes, "_LOOK_AGAIN_SECS", 0)
    with private_postgres() as server:
        execute(server.url, ITEMS, "insert into items values (1)")
        with consuming(server.url, "items") as consumer:
            take_all(consumer)
            consumer.feed.close()
            server.stop()
            backup = server.data_dir.with_name("backup")
            subprocess.run(["cp", "-a", server.data_dir, backup], check=True)
            server.start()
            execute(server.url, "insert into items values (2)")
            take_all(consumer)
            consumer.feed.close()
            server.stop()
            shutil.rmtree(server.data_dir)
            backup.rename(server.data_dir)
            if later == "a new timeline":
                _promoting(server)
                consumer.at = replace(consumer.at, mark=0)
            server.start()
            execute(server.url, "insert into items values (7)")
            if later != "at once":
                _write_past(server.url, consumer.at)
            consumer.restart()
            assert take_all(consumer) == [
                RESET, ("snapshot", '{"id":1}'), ("snapshot", '{"id":7}')
            ]  # fmt: skip
            execute(server.url, "insert into items values (8)")
            assert take_all(consumer) == [("insert", '{"id":8}')]


@pytest.mark.parametrize("batches", [1, 3])
def test_a_checkpoint_that_is_older_than_the_slot_is_refused(database: str, batches: int) -> None:
    """Postgres would begin at what was acknowledged last, and say nothing of what lies between."""
    execute(database, ITEMS)
    with consuming(database, "items") as consumer:
        execute(database, "insert into items values (1)")
        take_all(consumer)
        old = consumer.at
        for number in range(batches):
            execute(database, f"insert into items values ({number + 2})")
            take_all(consumer)
        assert consumer.is_quiet()
        newest, consumer.at = consumer.at, old
        consumer.restart()
        execute(database, "insert into items values (9)")
        with pytest.raises(SlotError, match=r"checkpoint is older than the slot.*newest") as told:
            take_all(consumer)
        with pytest.raises(SlotError, match="checkpoint is older"):
            consumer.feed.reread(old, newest)
        consumer.at = newest
        consumer.restart()
        assert take_all(consumer) == [("insert", '{"id":9}')]
        consumer.feed.close()
        execute(database, str(told.value).partition(" run: ")[2])
        with consuming(database, "items") as second:
            found = take_all(second)
        assert (found[0], len(found)) == (RESET, batches + 3)


def test_a_consumer_without_a_snapshot_begins_where_the_last_one_ended(database: str) -> None:
    execute(database, ITEMS)
    slot = Slot(database, name_of(database), ["items"], snapshot=False)
    first = Consumer(database, name_of(database), ["items"])
    execute(database, "insert into items values (1)")
    take_all(first)
    assert first.is_quiet()
    first.feed.close()
    execute(database, "update headrace.slots set owner = null", "insert into items values (2)")
    feed = ChangeFeed(slot)
    start = feed.begin()
    batch = feed.next_batch(start, **BOUNDS, wait_secs=10)
    assert [change.key for change in batch.changes] == ['{"id":2}']
    feed.close()


def test_a_slot_lost_in_a_failover_is_followed_by_one_snapshot() -> None:
    with private_postgres() as server:
        execute(server.url, ITEMS, "insert into items values (1)")
        with consuming(server.url, "items") as consumer:
            take_all(consumer)
            consumer.feed.close()
            server.stop()
            _promoting(server)
            server.start()
            consumer.feed.slot.drop()  # as where it is not synchronised to standbys
            assert take_all(consumer) == [RESET, ("snapshot", '{"id":1}')]
            assert consumer.at.system.endswith("/2")
            consumer.restart()
            execute(server.url, "insert into items values (2)")
            assert take_all(consumer) == [("insert", '{"id":2}')]


def _promoting(server: PostgresServer) -> None:
    """As after a recovery from archives: the next start begins a timeline of its own."""
    signal = server.data_dir / "recovery.signal"
    signal.touch()
    if server.account is not None:
        os.chown(signal, *server.account)
    with (server.data_dir / "postgresql.auto.conf").open("a") as conf:
        conf.write("restore_command = 'false'\n")
        conf.write("hot_standby = off\n")  # no connection before it has promoted itself


def _write_past(url: str, position: FeedPosition) -> None:
    execute(url, "create table filler (t text)")
    with psycopg.connect(url, autocommit=True) as connection:
        ended = "select pg_current_wal_flush_lsn() > %s::pg_lsn"
        while connection.execute(ended, (lsn_text(position.lsn),)).fetchone() != (True,):
            connection.execute("insert into filler select 'x' from generate_series(1, 1000)")


def test_a_new_timeline_that_has_all_that_was_read_is_gone_on_with() -> None:
    with private_postgres() as server:
        execute(server.url, ITEMS)
        with consuming(server.url, "items") as consumer:
            execute(server.url, "insert into items values (1)")
            take_all(consumer)
            before = consumer.at.system
            # Postgres does not stop while a reader that is connected leaves it without an answer.
            consumer.feed.close()
            server.stop()
            _promoting(server)
            server.start()
            execute(server.url, "insert into items values (2)")
            assert take_all(consumer) == [("insert", '{"id":2}')]
            assert before.endswith("/1")
            assert consumer.at.system == before.replace("/1", "/2")


@pytest.mark.parametrize("recovers", [True, False])
def test_a_position_of_another_postgres_is_not_trusted(database: str, recovers: bool) -> None:
    execute(database, ITEMS, "insert into items values (1)")
    with consuming(database, "items", recover_lost_slot=recovers) as consumer:
        take_all(consumer)
        consumer.restart()
        consumer.at = replace(consumer.at, system="7/1")
        if recovers:
            assert take_all(consumer) == [RESET, ("snapshot", '{"id":1}')]
        else:
            with pytest.raises(SlotError, match="this Postgres is another one"):
                take_all(consumer)


def test_a_generation_from_before_the_consumers_is_not_gone_back_to(database: str) -> None:
    execute(database, ITEMS, "insert into items values (1)")
    with consuming(database, "items") as consumer:
        take_all(consumer)
        consumer.restart()
        consumer.at = replace(consumer.at, generation=5)
        assert take_all(consumer) == [RESET, ("snapshot", '{"id":1}')]
        assert consumer.at.generation == 6


SMALL = {"max_slot_wal_keep_size": "32MB", "max_wal_size": "32MB"}
MANY = "insert into items select n, repeat(md5(n::text), 30) from generate_series(1, 40000) n"


def _outrun(slot: Slot) -> None:
    """Write log until Postgres gives up on the slot."""
    execute(slot.url, "create table if not exists filler (t text)")
    while not slot.health().is_lost:
        execute(
            slot.url,
            "insert into filler select repeat('x', 1000) from generate_series(1, 20000)",
            "select pg_switch_wal()",
            "checkpoint",
        )


def test_a_snapshot_may_be_larger_than_what_the_slot_may_keep() -> None:
    """And a slot lost on the way is no loop: it says what to raise, and goes on once it is."""
    with private_postgres(UNSYNCED | SMALL) as server:
        execute(server.url, ITEMS, MANY)
        with consuming(server.url, "items") as consumer:
            consumer.take(1000)
            execute(server.url, "select pg_switch_wal()", "checkpoint")
            assert not consumer.feed.slot.health().is_lost, "the copy itself is not in the log"
            _outrun(consumer.feed.slot)
            for _ in range(2):
                consumer.restart()
                with pytest.raises(SlotError, match=r"Raise max_slot_wal_keep_size.*32MB"):
                    consumer.take(1)
            server.stop()
            server.settings["max_slot_wal_keep_size"] = "64MB"
            server.start()
            consumer.restart()
            assert len([row for row in take_all(consumer) if row[0] == "snapshot"]) == 40000
            assert consumer.at.generation == 1


def test_a_snapshot_that_a_crash_took_is_taken_again() -> None:
    with private_postgres() as server:
        execute(server.url, ITEMS, "insert into items values (1), (2)")
        with consuming(server.url, "items") as consumer:
            consumer.take(1, batch=1)
            planned = consumer.feed.next_batch(consumer.at, **BOUNDS, wait_secs=1)
            server.kill()
            server.start()
            consumer.restart()
            assert not consumer.feed.reread(planned.start, planned.end)
            consumer.at = planned.end
            assert take_all(consumer) == [
                RESET, ("snapshot", '{"id":1}'), ("snapshot", '{"id":2}')
            ]  # fmt: skip


def test_a_slot_is_kept_through_a_failover_where_postgres_can(database: str) -> None:
    execute(database, ITEMS)
    with consuming(database, "items"), psycopg.connect(database) as connection:
        found = connection.execute(
            "select failover from pg_replication_slots where database = current_database()"
        ).fetchone()
        assert found == (True,)


def test_the_slot_of_another_database_is_left_alone(
    postgres: PostgresServer, database: str
) -> None:
    """Slots are of the whole server, and their names, too."""
    execute(postgres.url, "create table if not exists other_items (id int primary key)")
    execute(database, ITEMS, "insert into items values (1)")
    with consuming(database, "items") as consumer:
        take_all(consumer)
        slot = Slot(postgres.url, name_of(database), ["other_items"])
        with pytest.raises(SlotError, match=r"belongs to the database test_\d+.*Set slot"):
            ChangeFeed(slot).begin()
        slot.drop()
        execute(database, "insert into items values (2)")
        assert take_all(consumer) == [("insert", '{"id":2}')]


def test_without_a_name_two_databases_have_a_slot_each(
    postgres: PostgresServer, database: str
) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute('create database "Other-Shop"')
    other = postgres.url_of("Other-Shop")
    try:
        feeds = []
        for url in (database, other):
            execute(url, ITEMS, "insert into items values (1)")
            feeds.append(ChangeFeed(Slot(url, "", ["items"])))
            feeds[-1].begin()
        names = [feed.slot.name for feed in feeds]
        assert names[0] == "headrace_" + database.rpartition("/")[2]
        assert names[1].startswith("headrace_other_shop_")
        for feed in feeds:
            assert feed.slot.health().status == "reserved"
            feed.slot.drop()
    finally:
        with psycopg.connect(postgres.url, autocommit=True) as admin:
            admin.execute('drop database "Other-Shop" with (force)')


def test_a_slot_with_the_default_name_of_earlier_versions_stays_the_default(database: str) -> None:
    execute(database, ITEMS)
    ChangeFeed(Slot(database, "headrace", ["items"])).begin()
    assert Slot(database, "", ["items"]).name == "headrace"
