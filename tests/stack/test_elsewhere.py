"""The sync with a Postgres, a server and an Electric that are somebody else's."""

from __future__ import annotations

from pathlib import Path

import httpx
import psycopg
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.stack_process import StackProcess
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.shapes.helpers import ShapesProcess
from tests.stack.helpers import JSON, SYNC_SECS, event, read_all

pytestmark = [pytest.mark.slow, pytest.mark.sync]


def test_the_variables_name_a_database_a_server_and_an_electric_of_ones_own(
    database: str, tmp_path: Path
) -> None:
    with ServerProcess(cwd=str(tmp_path)) as server:
        electric = ShapesProcess(database, server.url, tmp_path / "shapes.log")
        electric.start()
        try:
            env = {
                "POSTGRES_URL": database,
                "DS_SERVER_URL": server.url,
                "ELECTRIC_URL": electric.url,
            }
            with StackProcess(tmp_path / "state", "sync", env=env) as stack:
                assert "postgres" not in {service.name for service in stack.record.services}
                follow_both_directions(database, server.url)
                assert slots(database) == {electric.prefix}, "the sync made none of its own"
                with httpx.Client(base_url=stack.address("server")) as own:
                    assert read_all(own, "pg-items") == []
        finally:
            electric.stop()


def follow_both_directions(database: str, server: str) -> None:
    with (
        httpx.Client(base_url=server, timeout=DEADLINE_SECS, headers=JSON) as client,
        psycopg.connect(database, autocommit=True) as db,
    ):
        db.execute("insert into items (title) values ('one'), ('two')")

        def titles() -> list[str]:
            return [row["title"] for row in read_all(client, "pg-items")]

        eventually(lambda: titles() == ["one", "two"], "the snapshot of items", SYNC_SECS)
        db.execute("insert into items (title) values ('three')")
        eventually(lambda: titles() == ["one", "two", "three"], "what came after", SYNC_SECS)
        client.post("/v1/stream/session-events", json=[event("k")]).raise_for_status()
        query = "select event_key from session_events"
        eventually(lambda: db.execute(query).fetchall() == [("k",)], "the event", SYNC_SECS)


def slots(database: str) -> set[str]:
    with psycopg.connect(database) as connection:
        query = "select slot_name from pg_replication_slots where database = current_database()"
        return {name for (name,) in connection.execute(query)}
