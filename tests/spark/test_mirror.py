"""A database through streams into another one: equal at the end, whatever happened on the way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import psycopg
import pytest
from pyspark.sql import SparkSession

from headrace.client import Client, State
from headrace.errors import StreamNotFound
from headrace.postgres.server import PostgresServer
from headrace.postgres.slots import Slot
from headrace.spark.pipelines import apply_changes, postgres_to_stream
from headrace.testing.server_process import ServerProcess
from tests.spark import mirrored
from tests.spark.cluster import Cluster
from tests.spark.mirror import Mirror
from tests.spark.mirror_driver import SLOT, TABLES, applied, feed
from tests.spark.test_pipelines import run_once

pytestmark = pytest.mark.slow


@pytest.fixture
def target(postgres: PostgresServer, database: str) -> Iterator[str]:
    name = f"{database.rpartition('/')[2]}_target"
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(f"create database {name}".encode())
        yield postgres.url_of(name)
        admin.execute(f"drop database {name} with (force)".encode())


def states(server: str, bucket: str) -> dict[str, State]:
    """Each table's stream, folded."""
    found = {}
    with Client(server) as client:
        for table in TABLES:
            state = found[table] = State()
            with suppress(StreamNotFound):  # of a table that was always empty
                for message in client.stream(f"/{bucket}/{table}").read_json():
                    state.apply(message)
            assert state.ignored == 0
    return found


def test_random_changes_fold_to_a_fresh_snapshot_and_apply_to_an_equal_database(
    spark: SparkSession, server: ServerProcess, database: str, target: str, tmp_path: Path
) -> None:
    mirrored.create(database)
    mirrored.create(target)
    changer = mirrored.Changer(random.Random(7))
    out, into = feed(server.url, database), applied(server.url, target)
    with psycopg.connect(database, autocommit=True) as connection:
        for transactions in (100, 300):
            for _ in range(transactions):
                changer.transaction(connection)
            run_once(spark, postgres_to_stream, out, tmp_path / "out")
            altered = changer.alter(connection)
            Slot(database, SLOT, TABLES).request_copy(altered.name)
    run_once(spark, postgres_to_stream, out, tmp_path / "out")
    run_once(spark, apply_changes, into, tmp_path / "into")
    assert list(mirrored.differences(database, target)) == []
    with psycopg.connect(target) as connection:
        connection.execute("delete from plain where id in (select id from plain limit 1)")
    assert len(list(mirrored.differences(database, target))) == 1, "a difference is seen"
    fresh = msgspec.structs.replace(
        out, slot="fresh", stream="/mirror-fresh/{schema}.{table}", producer="fresh"
    )
    run_once(spark, postgres_to_stream, fresh, tmp_path / "fresh")
    folded, snapshot = states(server.url, "mirror"), states(server.url, "mirror-fresh")
    for table in TABLES:
        name = table.partition(".")[2]
        assert folded[table].rows(name) == snapshot[table].rows(name), table


def test_a_mirror_is_equal_after_changes_ddl_and_kills(cluster: Cluster) -> None:
    with Mirror(cluster, seed=3) as mirror:
        assert mirror.finish_equal(["driver", "worker"]) == []
        assert mirror.changer.transactions > 100
        assert mirror.changer.altered
