"""Shapes of a role that may do no more than it has to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.shapes.helpers import ITEMS, Follower, ShapesProcess

pytestmark = pytest.mark.slow
ROLE = "shapes_role"


@pytest.fixture
def db(database: str) -> Iterator[psycopg.Connection]:
    """A superuser in a database where the role owns `items`."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"create role {ROLE} login replication password 'secret'".encode())
        name = connection.info.dbname
        connection.execute(f"grant create on database {name} to {ROLE}".encode())
        connection.execute(ITEMS.encode())
        connection.execute(f"alter table items owner to {ROLE}".encode())
        connection.execute("insert into items (title) values ('mine'), ('other')")
        yield connection
        connection.execute(f"drop owned by {ROLE}".encode())
        connection.execute(f"drop role {ROLE}".encode())


def test_a_role_that_owns_the_table_is_enough_unless_policies_hide_rows_from_it(
    db: psycopg.Connection, database: str, server: ServerProcess, tmp_path: Path
) -> None:
    url = database.replace("postgres:password@", f"{ROLE}:secret@")
    assert url != database
    process = ShapesProcess(url, server.url, tmp_path / "shapes.log")
    process.start()
    with Follower(process.url, "items") as follower:
        assert len(follower.catch_up()) == 2
        db.execute("insert into items (title) values ('live')")
        assert len(follower.live()) == 1
        # Its snapshots would leave rows out, and its changes would not.
        db.execute("create policy mine on items using (title = 'mine')")
        db.execute("alter table items enable row level security, force row level security")
        eventually(lambda: not follower.live() and follower.refetched > 0, "409")
        answer = follower.ask()
        assert answer.status_code == 400, answer.text
        assert "row-level security" in answer.json()["errors"]["table"][0]
        db.execute("alter table items no force row level security")
        assert len(follower.catch_up()) == 3
    process.stop()
    assert "Traceback" not in process.log, process.log
