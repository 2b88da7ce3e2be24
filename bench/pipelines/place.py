"""Where the rows run: one server that stores durably, one Postgres, one Spark session."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession

from headrace.client import Client
from headrace.postgres.server import PostgresServer
from headrace.postgres.slots import Slot
from headrace.spark.session import build_session
from headrace.testing.server_process import ServerProcess

SERVER = {
    "DS_STORAGE__MODE": "file-durable",
    "DS_LIMITS__MAX_STREAM_BYTES": str(4 * 1024**3),
    "DS_LIMITS__MAX_MEMORY_BYTES": str(4 * 1024**3),
}
PROGRESS_KEPT = "500"
# About 150 bytes each, as session events are.
MESSAGE = (
    'concat(\'{"key":"msg:\', id, \'","type":"message","operation":"set","value":'
    '{"text":"\', repeat(\'x\', 60), \'","session":"s\', id % 97, \'","n":\', id, \'}}\')'
)
VALUE = "struct<text: string, session: string, n: long>"
SCHEMA = f"key string, type string, operation string, value {VALUE}"


@dataclass(frozen=True, slots=True)
class Sizes:
    rows: int
    streams: tuple[int, ...]
    probes: int
    rate: int  # changes a second, of the rows that have a load
    changes: int
    keys: int
    idle_streams: int
    rounds: int


FULL = Sizes(1_000_000, (1, 10, 1000), 200, 1000, 1_000_000, 100_000, 10_000, 3)
SMALL = Sizes(20_000, (1, 10, 100), 8, 200, 20_000, 2_000, 200, 1)


@dataclass(frozen=True, slots=True)
class Place:
    sizes: Sizes
    home: Path
    server: ServerProcess
    postgres: PostgresServer
    client: Client
    spark: SparkSession

    def messages(self, rows: int) -> DataFrame:
        """`rows` messages as Spark has them in memory: `id` and `value`."""
        return self.held(self.spark.range(rows).selectExpr("id", f"{MESSAGE} value"))

    def held(self, rows: DataFrame) -> DataFrame:
        kept = rows.persist()
        kept.count()
        return kept

    def execute(self, query: str, *values: Any) -> None:
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            connection.execute(query.encode(), values or None)

    def drop_slot(self, slot: str, table: str) -> None:
        """Let go of a slot, which would keep what is written from now on, and of its table."""
        Slot(self.postgres.url, slot, [table], snapshot=False).drop()
        self.execute(f"drop table if exists {table}")

    def directory(self, name: str) -> Path:
        """An empty one, for a checkpoint that knows nothing."""
        path = self.home / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path


@contextmanager
def running(sizes: Sizes) -> Iterator[Place]:
    home = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    home.chmod(0o755)  # as root, Postgres runs as another account
    settings = SERVER | {"DS_STORAGE__DATA_DIR": str(home / "data")}
    try:
        with (
            PostgresServer(home / "postgres") as postgres,
            ServerProcess(settings, cwd=str(home)) as server,
            Client(server.url) as client,
        ):
            conf = {"spark.sql.streaming.numRecentProgressUpdates": PROGRESS_KEPT}
            spark = build_session("bench", conf=conf)
            try:
                yield Place(sizes, home, server, postgres, client, spark)
            finally:
                spark.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def thrown_away(rows: DataFrame) -> None:
    """Everything is computed, nothing is kept."""
    rows.write.format("noop").mode("overwrite").save()
