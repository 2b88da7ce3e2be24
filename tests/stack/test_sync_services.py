"""Migrations, the monitor and the database page, against a real Postgres."""

from __future__ import annotations

import threading

import httpx
import psycopg
import pytest

from headrace.protocol.access import HostRules
from headrace.stack import database_page, migrate
from headrace.stack.database_page import TablePages, UnknownTable
from headrace.stack.migrate import Migration, MigrationError
from headrace.stack.monitor import TO_POSTGRES, TO_STREAM, Monitor, SlotState, metrics
from headrace.stack.replication_lag import Behind, Lag
from headrace.testing.server_process import ServerProcess

ONE = Migration(1, "one", "create table one (id int primary key)")
TWO = Migration(2, "two", "create table two (id int primary key)")


def test_each_migration_is_applied_once_and_in_order(database: str) -> None:
    assert migrate.migrate(database, [ONE]) == [ONE]
    assert migrate.migrate(database, [ONE, TWO]) == [TWO]
    assert migrate.migrate(database, [ONE, TWO]) == []


def test_migrations_that_meet_wait_for_each_other(database: str) -> None:
    applied: list[Migration] = []
    threads = [
        threading.Thread(target=lambda: applied.extend(migrate.migrate(database, [ONE, TWO])))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert applied == [ONE, TWO]


def test_a_migration_that_fails_leaves_nothing(database: str) -> None:
    bad = Migration(2, "bad", "create table half (id int); select nonsense")
    with pytest.raises(psycopg.Error):
        migrate.migrate(database, [ONE, bad])
    assert migrate.migrate(database, [ONE, TWO]) == [TWO]
    with psycopg.connect(database) as connection:
        row = connection.execute("select to_regclass('half')").fetchone()
    assert row == (None,)


def test_a_migration_that_was_changed_is_refused(database: str) -> None:
    migrate.migrate(database, [ONE])
    changed = Migration(1, "one", "create table one (id bigint primary key)")
    with pytest.raises(MigrationError, match="was changed after it was applied"):
        migrate.migrate(database, [changed])


def test_a_database_that_is_newer_is_refused(database: str) -> None:
    migrate.migrate(database, [ONE, TWO])
    with pytest.raises(MigrationError, match="0002_two"):
        migrate.migrate(database, [ONE])


def test_the_schema_is_the_reference_s(database: str) -> None:
    migrate.migrate(database)
    with psycopg.connect(database) as connection:
        found = connection.execute(
            "select table_name, string_agg(column_name, ' ' order by ordinal_position)"
            " from information_schema.columns where table_schema = 'public' group by 1 order by 1"
        ).fetchall()
    assert found == [
        ("items", "id title body created_at"),
        (
            "session_events",
            "id stream_name event_key event_type operation payload ds_offset received_at",
        ),
    ]


# --- lag ---


def test_what_has_caught_up_is_not_behind() -> None:
    behind = Behind()
    assert behind.lag(5.0, 0) == Lag(0.0, 0)
    behind.saw(10.0, position=100, count=7)
    assert behind.lag(12.0, 100) == Lag(0.0, 0)


def test_lag_counts_from_when_the_end_passed_the_place() -> None:
    behind = Behind()
    for at, position, count in ((10.0, 100, 1), (11.0, 200, 3), (12.0, 300, 6)):
        behind.saw(at, position, count)
    assert behind.lag(13.0, 100) == Lag(2.0, 5)
    assert behind.lag(13.0, 250) == Lag(1.0, 3)


@pytest.mark.parametrize(
    ("status", "retained", "limit", "words"),
    [
        ("reserved", 100, 1000, None),
        ("reserved", 500, 1000, "at the limit"),
        ("unreserved", 10, 1000, "at the limit"),
        ("reserved", 1024**3 - 1, -1, None),
        ("reserved", 1024**3, -1, "may fill the disk"),
        ("lost", 0, 1000, "is lost"),
    ],
)
def test_a_slot_is_warned_of_before_it_endangers_the_disk(
    status: str, retained: int, limit: int, words: str | None
) -> None:
    warning = SlotState("s", False, status, retained, 0).warning(limit)
    assert (warning is None) == (words is None)
    assert words is None or (warning is not None and words in warning)


def test_the_monitor_sees_both_directions(database: str, server: ServerProcess) -> None:
    migrate.migrate(database)
    stream = f"{server.url}/v1/stream/monitored"
    httpx.put(stream, headers={"Content-Type": "application/json"}).raise_for_status()
    slot = "monitored_" + database.rpartition("_")[2]
    monitor = Monitor(database, server.url, slot=slot, stream="monitored")
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        monitor.poll(100.0)
        httpx.post(stream, json=[{"n": 1}, {"n": 2}]).raise_for_status()
        db.execute("insert into items (title) values ('a')")
        found = monitor.poll(101.0)
        assert found.lags[TO_POSTGRES] == Lag(0.0, 2)
        assert monitor.poll(104.0).lags[TO_POSTGRES] == Lag(3.0, 2)
        assert found.lags[TO_STREAM].seconds >= 0
        db.execute("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,))
        offset = httpx.head(stream).headers["stream-next-offset"]
        db.execute(
            "insert into session_events (stream_name, payload, ds_offset)"
            " values ('monitored', '{}', %s)",
            (offset,),
        )
        assert monitor.poll(105.0).lags[TO_POSTGRES] == Lag(0.0, 0)
        text = metrics(found).decode()
        db.execute("select pg_drop_replication_slot(%s)", (slot,))
    monitor.close()
    assert 'headrace_sync_lag_rows{direction="stream-to-postgres"} 2.0' in text
    assert f'headrace_slot_retained_bytes{{slot="{slot}"}}' in text


# --- the page of tables ---


def test_the_page_shows_rows_and_escapes_them(database: str) -> None:
    migrate.migrate(database)
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("insert into items (title) values ('<script>alert(1)</script>')")
    pages = TablePages(database)
    assert "public.items" in pages.index()
    page = pages.table("public.items")
    assert "&lt;script&gt;" in page
    assert "<script>" not in page


@pytest.mark.parametrize("name", ["", "items", "public.nothing", "pg_catalog.pg_authid", 'a"."b'])
def test_the_page_shows_no_other_table(database: str, name: str) -> None:
    with pytest.raises(UnknownTable):
        TablePages(database).table(name)


def test_the_page_cannot_write(database: str) -> None:
    migrate.migrate(database)
    with TablePages(database)._connect() as connection:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("insert into items (title) values ('x')")
        connection.rollback()


def test_the_page_is_served(database: str) -> None:
    with database_page.server(database, "127.0.0.1", 0, HostRules()) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            assert httpx.get(f"{url}/").status_code == 200
            assert httpx.get(f"{url}/table?name=nothing").status_code == 404
        finally:
            server.shutdown()
            thread.join()
