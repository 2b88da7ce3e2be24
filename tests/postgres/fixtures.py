"""A real Postgres for the tests that need one, and a database of one's own in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import psycopg
import pytest

from headrace.postgres.server import PostgresServer
from headrace.testing.waiting import eventually

_numbers = count()

# Nothing here survives a power cut, and nothing needs to: a kill -9 loses no write without fsync.
UNSYNCED = {"fsync": "off", "full_page_writes": "off", "max_connections": "60"}


@contextmanager
def private_postgres(settings: Mapping[str, str] = UNSYNCED) -> Iterator[PostgresServer]:
    """A Postgres to kill or to set up in another way. As root it runs as another account, which
    may not enter pytest's own directories."""
    home = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
    home.chmod(0o755)
    try:
        with PostgresServer(home / "data", settings=settings) as server:
            yield server
    finally:
        shutil.rmtree(home)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One Postgres for the whole run."""
    with private_postgres() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database that no other test uses; its slots and itself go afterwards."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(f"create database {name}")
        yield postgres.url_of(name)
        # A query that is still stopping may open its slot once more.
        eventually(lambda: not _drop_slots(admin, name), "a database without slots")
        admin.execute(f"drop database {name} with (force)")


def _drop_slots(admin: psycopg.Connection, database: str) -> bool:
    """Drop the slots of a database, whoever reads them; whether any are left."""
    admin.execute(
        "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots"
        " where database = %s and active_pid is not null",
        (database,),
    )
    with suppress(psycopg.errors.ObjectInUse):
        admin.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            " where database = %s and not active",
            (database,),
        )
    left = admin.execute("select 1 from pg_replication_slots where database = %s", (database,))
    return left.fetchone() is not None
