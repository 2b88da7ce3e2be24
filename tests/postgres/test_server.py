"""Postgres from the wheel: starts as somebody, keeps its data, comes back after a crash."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.postgres.server import PostgresError, PostgresServer
from tests.postgres.fixtures import UNSYNCED

pytestmark = pytest.mark.slow


@pytest.fixture
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def ask(url: str, query: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
        return row[0] if row else None


def test_it_is_made_for_logical_replication(postgres: PostgresServer) -> None:
    assert ask(postgres.url, "show wal_level") == "logical"
    assert ask(postgres.url, "show max_slot_wal_keep_size") == "1GB"
    assert ask(postgres.url, "select current_database()") == "durable_streams"


def test_a_wrong_password_is_refused(postgres: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        ask(postgres.url.replace(postgres.password, "guess"), "select 1")


def test_it_keeps_data_and_port_through_a_stop_and_a_crash(home: Path) -> None:
    server = PostgresServer(home / "data", settings=UNSYNCED)
    with server:
        port = server.port
        with psycopg.connect(server.url) as connection:
            connection.execute("create table kept as select 7 as n")
    assert not server.is_running
    server.start()
    server.kill()
    server.start()
    try:
        assert ask(server.url, "select n from kept") == 7
        assert server.port == port
    finally:
        server.stop()


def test_a_directory_it_cannot_enter_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    server = PostgresServer(closed / "data")
    with pytest.raises((PostgresError, PermissionError), match="closed"):
        server.start()
