"""Rows arrive once: the ledger settles repeats, refused rows are named, the last of a key wins."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headrace.changes.rejected import Rejected
from headrace.postgres.ledger import Claim, Committed, SinkError, digest, prepare
from headrace.postgres.sink import SinkTarget, write

pytestmark = pytest.mark.slow


@pytest.fixture
def table(database: str) -> str:
    with psycopg.connect(database) as connection:
        connection.execute("create table events (id int primary key, note text, doc jsonb)")
    prepare(database)
    return database


def batch(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    names = ["id", "note", "doc"]
    types = [pa.int32(), pa.string(), pa.string()]
    columns = zip(*rows, strict=True)
    arrays = [pa.array(list(c), t) for c, t in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def target(url: str, **options: Any) -> SinkTarget:
    return SinkTarget(url, "public.events", ("id", "note", "doc"), **options)


def stored(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute("select id, note, doc from events order by id").fetchall()


def test_null_empty_and_odd_characters_arrive_as_they_are(table: str) -> None:
    odd = 'a,"b"\n\\N\té\U0001f600'
    write(target(table), None, [batch((1, None, None), (2, "", "{}"), (3, odd, '{"k":"v"}'))])
    assert stored(table) == [(1, None, None), (2, "", {}), (3, odd, {"k": "v"})]


def test_a_batch_that_comes_again_changes_nothing(table: str) -> None:
    claim = Claim("w", "query", 0, 5)
    assert write(target(table), claim, [batch((1, "a", None))]).rows == 1
    again = write(target(table), claim, [batch((1, "a", None))])
    assert (again.rows, again.was_in) == (0, True)
    assert write(target(table), Claim("w", "query", 1, 5), [batch((2, "b", None))]).rows == 1
    assert [row[0] for row in stored(table)] == [1, 2]


def cut(run: str, partition: int, *rows: tuple[Any, ...]) -> tuple[Claim, list[pa.RecordBatch]]:
    """One partition of batch 5, as a run of the writer has it."""
    batches = [batch(*rows)]
    return Claim("w", "query", partition, 5, run, digest(batches)), batches


ONE, TWO, THREE = (1, "a", None), (2, "b", None), (3, "c", None)


def test_a_batch_cut_into_fewer_partitions_than_before_the_crash_is_refused(table: str) -> None:
    write(target(table), *cut("first", 0, ONE))
    with pytest.raises(SinkError, match="the same master and cores"):
        write(target(table), *cut("second", 0, ONE, TWO, THREE))
    assert [row[0] for row in stored(table)] == [1]
    # As before the crash: nothing is missing.
    assert write(target(table), *cut("third", 0, ONE)).was_in
    write(target(table), *cut("third", 1, TWO, THREE))
    assert [row[0] for row in stored(table)] == [1, 2, 3]


def test_a_batch_cut_into_more_partitions_than_before_the_crash_is_refused(table: str) -> None:
    write(target(table), *cut("first", 0, ONE, TWO))
    with pytest.raises(SinkError, match="partition 0 does not come again"):
        write(target(table, retry_secs=0.2), *cut("second", 1, TWO))
    with pytest.raises(SinkError, match="does not come again"):
        write(target(table), *cut("second", 0, ONE))
    assert [row[0] for row in stored(table)] == [1, 2]


def test_what_is_missing_waits_until_what_is_in_was_found_again(table: str) -> None:
    write(target(table), *cut("first", 1, TWO))
    with ThreadPoolExecutor() as tasks:
        missing = tasks.submit(write, target(table), *cut("second", 0, ONE))
        with pytest.raises(TimeoutError):
            missing.result(timeout=0.5)
        assert write(target(table), *cut("second", 1, TWO)).was_in
        assert missing.result(timeout=60).rows == 1
    assert [row[0] for row in stored(table)] == [1, 2]


def test_rows_in_another_order_are_taken_once_somebody_says_so(table: str) -> None:
    write(target(table), *cut("first", 0, ONE, TWO))
    with pytest.raises(SinkError) as refusal:
        write(target(table), *cut("second", 0, TWO, ONE))
    with psycopg.connect(table) as connection:
        connection.execute(str(refusal.value).partition("shuffle: ")[2].encode())
    assert write(target(table), *cut("second", 0, TWO, ONE)).was_in


def test_a_task_of_a_run_that_was_replaced_writes_nothing(table: str) -> None:
    write(target(table), *cut("first", 0, ONE))
    assert write(target(table), *cut("second", 0, ONE)).was_in
    with pytest.raises(SinkError, match="has taken over"):
        write(target(table), *cut("first", 1, TWO))
    write(target(table), *cut("second", 1, TWO))
    assert [row[0] for row in stored(table)] == [1, 2]


def test_two_attempts_at_one_partition_write_it_once(table: str) -> None:
    rows = [(number, "x", None) for number in range(500)]
    with ThreadPoolExecutor(4) as tasks:
        attempts = [tasks.submit(write, target(table), *cut("run", 0, *rows)) for _ in range(4)]
        assert sorted(attempt.result(60).rows for attempt in attempts) == [0, 0, 0, 500]
    assert len(stored(table)) == 500


@pytest.mark.parametrize("partition", [0, 1])
def test_an_older_batch_after_a_newer_one_is_refused(table: str, partition: int) -> None:
    """Not taken for what is in: of an old copy of a checkpoint it may have other rows."""
    write(target(table), Claim("w", "query", 0, 6), [batch(ONE)])
    with pytest.raises(SinkError, match="older than batch 6"):
        write(target(table), *cut("", partition, TWO))


def test_rows_with_a_key_may_come_again_cut_differently(table: str) -> None:
    upsert = target(table, keys=("id",))
    write(upsert, *cut("first", 0, ONE, TWO))
    write(upsert, *cut("second", 0, ONE))
    write(upsert, *cut("second", 1, TWO, THREE))
    assert [row[0] for row in stored(table)] == [1, 2, 3]


def test_a_ledger_of_an_older_version_is_taken_over(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("create table events (id int primary key, note text, doc jsonb)")
        connection.execute("create schema headrace")
        connection.execute(
            "create table headrace.ledger (writer text not null, partition int not null,"
            " batch bigint not null, query text not null, primary key (writer, partition))"
        )
        connection.execute("insert into headrace.ledger values ('w', 0, 5, 'query')")
    prepare(database)
    assert write(target(database), *cut("run", 0, ONE)).was_in
    assert write(target(database), *cut("run", 1, TWO)).rows == 1


def test_rows_are_told_apart_however_they_were_cut_into_batches() -> None:
    whole = digest([batch(ONE, TWO, THREE)])
    assert digest([batch(ONE), batch(TWO, THREE)]) == whole
    assert digest([batch(ONE, TWO, THREE).slice(0, 1), batch(ONE, TWO, THREE).slice(1)]) == whole
    assert digest([batch(ONE, THREE, TWO)]) != whole
    assert digest([batch(ONE, TWO)]) != whole
    assert digest([batch((1, None, None), TWO, THREE)]) != whole
    assert digest([]) != whole


def test_without_the_ledger_a_batch_that_comes_again_is_doubled(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("create table events (id int, note text, doc jsonb)")
    for _ in range(2):
        write(target(database), None, [batch((1, "a", None))])
    assert len(stored(database)) == 2


def test_another_checkpoint_under_the_same_name_is_refused_loudly(table: str) -> None:
    write(target(table), Claim("w", "first", 0, 5), [batch((1, "a", None))])
    with pytest.raises(SinkError, match="another checkpoint"):
        write(target(table), Claim("w", "second", 0, 6), [batch((2, "b", None))])


def test_another_checkpoint_is_refused_before_it_takes_the_running_one_down(table: str) -> None:
    write(target(table), Claim("w", "first", 0, 5, "run 1"), [batch((1, "a", None))])
    with pytest.raises(SinkError, match="give this one another writer"):
        write(target(table), Claim("w", "second", 0, 0, "run 2"), [batch((2, "b", None))])
    write(target(table), Claim("w", "first", 0, 6, "run 1"), [batch((3, "c", None))])
    assert [row[0] for row in stored(table)] == [1, 3]


def test_the_last_row_of_a_key_wins(table: str) -> None:
    upsert = target(table, keys=("id",))
    first = [batch((1, "a", None), (2, "b", None), (1, "c", None)), batch((2, "d", None))]
    write(upsert, Claim("w", "q", 0, 0), first)
    write(upsert, Claim("w", "q", 0, 1), [batch((1, "e", "[1]"))])
    assert stored(table) == [(1, "e", [1]), (2, "d", None)]


def test_a_refused_row_fails_the_batch_and_nothing_of_it_is_in(table: str) -> None:
    bad = [batch((1, "a", None)), batch((2, "b", "{}"), (3, "c", "not json"))]
    with pytest.raises(SinkError, match=r"events refuses a row: .*json"):
        write(target(table), Claim("w", "q", 0, 0), bad)
    assert stored(table) == []
    assert write(target(table), Claim("w", "q", 0, 0), [batch((1, "a", None))]).rows == 1


def test_a_refused_row_can_be_set_aside_and_the_rest_goes_in(table: str) -> None:
    aside: list[Rejected] = []
    rows = [(n, "x", '"\\u0000"' if n in (3, 7) else "{}") for n in range(10)]
    done = write(target(table), Claim("w", "q", 0, 0), [batch(*rows)], aside.extend)
    assert (done.rows, [r.row["id"] for r in aside]) == (8, [3, 7])
    assert "u0000" in aside[0].reason
    assert len(stored(table)) == 8


def test_a_missing_table_is_named(database: str) -> None:
    with pytest.raises(SinkError, match="events"):
        write(target(database), None, [batch((1, "a", None))])


def test_a_postgres_that_stays_away_is_an_error_that_says_so(table: str) -> None:
    away = target("postgresql://postgres:password@127.0.0.1:1/none", retry_secs=0.2)
    with pytest.raises(SinkError, match="did not take the rows"):
        write(away, None, [batch((1, "a", None))])


def test_a_full_disk_is_named_and_nothing_is_lost(table: str) -> None:
    with psycopg.connect(table) as connection:
        connection.execute(
            "create function no_room() returns trigger language plpgsql as $$ begin"
            " raise exception 'could not extend file' using errcode = '53100'; end $$"
        )
        connection.execute(
            "create trigger no_room before insert on events execute function no_room()"
        )
    claim, rows = Claim("w", "q", 0, 0), [batch((1, "a", None))]
    with pytest.raises(SinkError, match=r"no room .* Nothing is lost"):
        write(target(table, retry_secs=0.2), claim, rows)
    with psycopg.connect(table) as connection:
        connection.execute("drop trigger no_room on events")
    assert write(target(table), claim, rows).rows == 1
    assert [row[0] for row in stored(table)] == [1]


def test_lists_and_bytes_have_their_own_columns(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("create table events (tags text[], raw bytea)")
    rows = pa.RecordBatch.from_pydict({"tags": [["a", None, 'b"\\']], "raw": [b"\x00\xff"]})
    write(SinkTarget(database, "events", ("tags", "raw")), None, [rows])
    with psycopg.connect(database) as connection:
        found = connection.execute("select tags, raw from events").fetchone()
    assert found == (["a", None, 'b"\\'], b"\x00\xff")


def test_intervals_and_the_elements_of_lists_arrive_as_they_are(database: str) -> None:
    long, short = timedelta(days=40_000, microseconds=5), -timedelta(hours=1, milliseconds=20)
    with psycopg.connect(database) as connection:
        connection.execute("create table events (lasted interval, steps interval[], raws bytea[])")
    columns = {
        "lasted": pa.array([long, short, None], pa.duration("us")),
        "steps": pa.array([[long, None, short], [], None], pa.list_(pa.duration("us"))),
        "raws": pa.array([[b"\x00\xff", None, b"\\"], [b""], None], pa.list_(pa.binary())),
    }
    rows = pa.RecordBatch.from_pydict(columns)
    write(SinkTarget(database, "events", ("lasted", "steps", "raws")), None, [rows])
    with psycopg.connect(database) as connection:
        found = connection.execute("select lasted, steps, raws from events").fetchall()
    assert found == [
        (long, [long, None, short], [b"\x00\xff", None, b"\\"]),
        (short, [], [b""]),
        (None, None, None),
    ]


def committed(*batches: tuple[int, tuple[int, ...]]) -> Committed:
    return Committed("/state/ledger.json", batches)


def test_a_ledger_behind_what_the_driver_saw_committed_is_refused(table: str) -> None:
    """As after a failover to a standby that was behind, or a restore."""
    for partition in (0, 1):
        claim = Claim("w", "query", partition, 4)
        write(target(table), claim, [batch((partition, "in", None))])
    seen = committed((4, (0, 1)), (5, (0, 1)))
    again = Claim("w", "query", 0, 5, committed=seen)
    write(target(table), again, [batch((2, "comes again", None))])
    for lost in (5, 6):  # all of batch 6 is lost, and one partition of batch 5
        seen = committed((lost - 1, (0,)), (lost, (0, 1)))
        with pytest.raises(
            SinkError, match=f"committed batch {lost}.*of batch 5 and later"
        ) as told:
            write(
                target(table), Claim("w", "query", 0, 7, committed=seen), [batch((9, "no", None))]
            )
    assert "numbered 5 and above in /state/commits" in str(told.value)
    assert "numbered above 5 in /state/offsets" in str(told.value)
    with psycopg.connect(table) as connection:
        connection.execute("update headrace.ledger set planned = array['offsets'] where batch = 5")
    with pytest.raises(
        SinkError, match=r"headrace\.spark\.rewind /state --postgres URL --writer w"
    ):
        write(target(table), Claim("w", "query", 0, 7, committed=seen), [batch((9, "no", None))])
    assert [row[0] for row in stored(table)] == [0, 1, 2]
    with psycopg.connect(table) as connection:
        connection.execute("delete from headrace.ledger")
    with pytest.raises(SinkError, match="knows nothing of it"):
        write(target(table), Claim("w", "query", 0, 7, committed=seen), [batch((9, "no", None))])
