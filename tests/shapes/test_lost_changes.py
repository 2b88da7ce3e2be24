"""Changes that Postgres or the server no longer has: readers fetch anew, and are never told that
they are up to date."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest

from headrace.postgres.server import PostgresServer
from headrace.stack.ports import Ports
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.postgres.fixtures import UNSYNCED, private_postgres
from tests.shapes.helpers import ITEMS, Follower, ShapesProcess

pytestmark = pytest.mark.slow
EXPECTED = "shapes are no longer followed"


def titles(follower: Follower) -> list[str]:
    return [message["value"]["title"] for message in follower.catch_up()]


def until_refetched(follower: Follower) -> None:
    eventually(lambda: not follower.live() and follower.refetched > 0, "409")


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def insert(url: str, title: str) -> None:
    execute(url, f"insert into items (title) values ('{title}')")


def check_it_goes_on(follower: Follower, url: str, expected: list[str]) -> None:
    """From a snapshot of its own, and live."""
    until_refetched(follower)
    assert titles(follower) == expected
    (whole,) = follower.ask().json()
    # As a reader of events goes on.
    follower.offset = f"{whole['headers']['global_last_seen_lsn']}_0"
    insert(url, "live")
    assert [m["value"]["title"] for m in follower.live()] == ["live"]


@contextmanager
def serving(database: str, server_url: str, log: Path) -> Iterator[ShapesProcess]:
    """Shapes of a table with one row."""
    execute(database, ITEMS)
    insert(database, "old")
    process = ShapesProcess(database, server_url, log)
    process.start()
    try:
        yield process
    finally:
        process.kill()  # it may be paused
    assert "Traceback" not in process.log or EXPECTED in process.log, process.log


@pytest.fixture
def own(server: ServerProcess, database: str, tmp_path: Path) -> Iterator[ShapesProcess]:
    with serving(database, server.url, tmp_path / "shapes.log") as process:
        yield process


@pytest.fixture
def follower(own: ShapesProcess) -> Iterator[Follower]:
    with Follower(own.url, "items") as reader:
        assert titles(reader) == ["old"]
        yield reader


def drop_slot(url: str, slot: str) -> None:
    """Whoever reads it."""
    with psycopg.connect(url, autocommit=True) as connection:

        def dropped() -> bool:
            connection.execute(
                "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots"
                " where slot_name = %s and active_pid is not null",
                (slot,),
            )
            try:
                connection.execute("select pg_drop_replication_slot(%s)", (slot,))
            except psycopg.errors.ObjectInUse:
                return False
            return True

        eventually(dropped, "the slot is dropped")


@pytest.mark.parametrize("made_again", [False, True])
def test_a_slot_that_is_dropped_ends_all_shapes(
    own: ShapesProcess, database: str, follower: Follower, made_again: bool
) -> None:
    own.pause()
    drop_slot(database, own.prefix)
    insert(database, "missed")
    if made_again:
        make = f"select pg_create_logical_replication_slot('{own.prefix}', 'pgoutput')"
        execute(database, make)
    own.resume()
    check_it_goes_on(follower, database, ["old", "missed"])


def test_a_slot_that_postgres_gave_up_ends_all_shapes(
    server: ServerProcess, tmp_path: Path
) -> None:
    with (
        private_postgres({**UNSYNCED, "max_slot_wal_keep_size": "1MB"}) as postgres,
        serving(postgres.url, server.url, tmp_path / "shapes.log") as own,
        Follower(own.url, "items") as follower,
        psycopg.connect(postgres.url, autocommit=True) as db,
    ):
        assert titles(follower) == ["old"]
        own.pause()
        insert(postgres.url, "missed")
        for _ in range(3):
            execute(postgres.url, "select pg_switch_wal()", "create table t ()", "drop table t")
        execute(postgres.url, "checkpoint")
        lost = "select from pg_replication_slots where wal_status = 'lost'"
        eventually(lambda: db.execute(lost).rowcount == 1, "the slot is lost")
        own.resume()
        check_it_goes_on(follower, postgres.url, ["old", "missed"])


class Restorable:
    """A Postgres that can be put back to the moment at which this was made, with its slots."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._backup = server.data_dir.with_name("backup")
        server.kill()
        subprocess.run(["cp", "-a", server.data_dir, self._backup], check=True)
        server.start()

    def restore(self) -> None:
        self._server.kill()
        shutil.rmtree(self._server.data_dir)
        subprocess.run(["cp", "-a", self._backup, self._server.data_dir], check=True)
        self._server.start()


def test_a_restore_of_postgres_to_an_earlier_moment_ends_all_shapes(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Nothing of Postgres's own says so, while the shapes run or before they are started."""
    undone = "insert into items (title, body) values ('undone', repeat(md5('x'), 100000))"
    with (
        private_postgres() as postgres,
        serving(postgres.url, server.url, tmp_path / "shapes.log") as own,
        Follower(own.url, "items") as follower,
    ):
        assert titles(follower) == ["old"]
        own.pause()
        restorable = Restorable(postgres)
        own.resume()
        for pause, go_on in ((own.pause, own.resume), (own.stop, own.start)):
            follower.refetched = 0
            execute(postgres.url, undone)
            assert [m["value"]["title"] for m in follower.live()] == ["undone"]
            pause()
            restorable.restore()
            insert(postgres.url, "other")
            go_on()
            check_it_goes_on(follower, postgres.url, ["old", "other"])


def test_a_publication_that_is_dropped_amid_other_writes_ends_all_shapes(
    own: ShapesProcess, database: str, follower: Follower
) -> None:
    own.pause()
    execute(database, "drop publication headrace_shapes", "create table other (id int)")
    execute(database, "insert into other values (1)")
    insert(database, "missed")
    own.resume()
    check_it_goes_on(follower, database, ["old", "missed"])


def test_a_change_that_postgres_fails_to_decode_ends_all_shapes(
    own: ShapesProcess, database: str, follower: Follower
) -> None:
    """Every connection to the slot would fail at it again. Before Postgres 18 it is also enough
    that the publication was dropped and made again."""
    own.pause()
    execute(database, "alter publication headrace_shapes set table items where (1 / (id - 2) > 0)")
    insert(database, "divided by zero")
    own.resume()
    # The altered publication ends the shape, too, and perhaps sooner.
    eventually(lambda: "division by zero" in own.log, "the failure is noticed")
    check_it_goes_on(follower, database, ["old", "divided by zero"])


def test_a_server_that_lost_its_streams_ends_all_shapes(database: str, tmp_path: Path) -> None:
    port = str(Ports(any_free=True).give("server"))
    first, second = (ServerProcess(args=["--port", port], cwd=str(tmp_path)) for _ in range(2))
    first.start()
    with (
        serving(database, first.url, tmp_path / "shapes.log") as own,
        Follower(own.url, "items") as one,
        Follower(own.url, "items", where="id > 0") as two,
    ):
        assert titles(one) == titles(two) == ["old"]
        first.kill()
        with second:
            insert(database, "missed")
            check_it_goes_on(one, database, ["old", "missed"])
            until_refetched(two)
            assert titles(two) == ["old", "missed", "live"]
            own.kill()
            own.start()
            assert titles(one) == titles(two) == [], "they are known to the next process"
            assert [one.refetched, two.refetched] == [1, 1]


def test_shapes_that_cannot_be_followed_are_not_served(
    server: ServerProcess, database: str, own: ShapesProcess, follower: Follower
) -> None:
    """The process ends, for its supervisor to start it again."""
    registry = f"{server.url}/v1/stream/{own.prefix}/registry"
    assert httpx.post(registry, headers={"Stream-Closed": "true"}).status_code == 204
    execute(database, "truncate items")  # the end of the shape cannot be recorded
    assert own.wait() == 1
    assert EXPECTED in own.log
