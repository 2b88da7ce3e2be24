"""Every pipeline once, over data that is always the same: what each leaves behind.

As a program, on a master of one's choice: `python -m tests.spark.pipelines MASTER HOME SERVER
POSTGRES`, which prints it as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psycopg
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headrace.client import Client
from headrace.spark.pipelines import (
    apply_changes,
    archive,
    compact,
    postgres_to_stream,
    replay,
    sessions,
    stream_to_postgres,
)
from headrace.spark.pipelines.base import Run
from headrace.spark.session import build_session
from tests.spark.cluster import CONF, STARTS_MAX, is_too_busy

_SESSIONS, _EVENTS, _ITEMS, _KEYS = 6, 40, 120, 7
_DEADLINE_SECS = 300


class Place:
    """A server, a database and a directory; the names in them begin with the directory's."""

    def __init__(self, spark: SparkSession, home: Path, server: str, postgres: str) -> None:
        self._spark, self._home, self._server, self._postgres = spark, home, server, postgres
        self._name = home.name

    def run_all(self) -> dict[str, Any]:
        with Client(self._server) as client:
            self._fill(client)
            return {
                "stream-to-postgres": self._rows(),
                "postgres-to-stream": self._messages(client),
                "apply-changes": self._applied(),
                "sessions": self._figures(client),
                "archive": self._archived(),
                "replay": self._replayed(client),
                "compact": self._compacted(client),
            }

    def _fill(self, client: Client) -> None:
        client.bucket(self._name).create()
        for number in range(_SESSIONS):
            stream = client.stream(f"/{self._name}/{number}")
            stream.create("application/json")
            stream.append_json(*(_event(number, event) for event in range(_EVENTS)))
        with psycopg.connect(self._postgres) as connection:
            connection.execute("create table items (id int primary key, title text)")
            connection.execute(
                "insert into items select n, 'item ' || n from generate_series(1, %s) n", (_ITEMS,)
            )

    def _run(self, module: Any, **config: Any) -> None:
        settings = module.Config(server=self._server, **config)
        state = self._home / module.__name__.rpartition(".")[2]
        for _ in range(STARTS_MAX):
            query = module.start(self._spark, settings, Run(True, state))
            try:
                assert query.awaitTermination(_DEADLINE_SECS), f"{state.name} has not ended"
                return
            except StreamingQueryException as error:
                if not is_too_busy(str(error)):
                    raise
        raise AssertionError(f"{state.name}: the machine has too much to do")

    def _rows(self) -> list[Any]:
        self._run(
            stream_to_postgres,
            bucket=self._name,
            postgres=self._postgres,
            quarantine=f"{self._name}-bad",
            messages_per_batch=150,
        )
        order = "select stream_name, event_key, payload, ds_offset from session_events order by id"
        with psycopg.connect(self._postgres) as connection:
            return self._by_stream(connection.execute(order).fetchall())

    def _messages(self, client: Client) -> list[Any]:
        stream = f"{self._name}-items"
        self._run(postgres_to_stream, postgres=self._postgres, stream=stream, changes_per_batch=100)
        return list(client.stream(stream).read_json())

    def _applied(self) -> list[Any]:
        self._run(
            apply_changes,
            bucket=self._name,
            postgres=self._postgres,
            table="applied_{stream}",
            keys=("id",),
            messages_per_batch=150,
        )
        with psycopg.connect(self._postgres) as connection:
            return [
                connection.execute(f"select * from applied_{n} order by id".encode()).fetchall()
                for n in range(_SESSIONS)
            ]

    def _archived(self) -> list[Any]:
        from deltalake import DeltaTable

        self._run(archive, bucket=self._name, table=str(self._table))
        found = DeltaTable(str(self._table)).to_pyarrow_table().sort_by("offset").to_pylist()
        return self._by_stream([(row["stream"], row["offset"], row["value"]) for row in found])

    def _replayed(self, client: Client) -> list[Any]:
        self._run(replay, table=str(self._table), to="{stream}-again")
        names = (f"/{self._name}/{number}-again" for number in range(_SESSIONS))
        return [list(client.stream(name).read_json()) for name in names]

    def _compacted(self, client: Client) -> list[Any]:
        self._run(compact, bucket=self._name, messages_min=1)
        names = (f"/{self._name}/{number}" for number in range(_SESSIONS))
        return [json.loads(client.stream(name).snapshot().data) for name in names]

    def _figures(self, client: Client) -> list[Any]:
        stream = f"{self._name}-minutes"
        self._run(sessions, bucket=self._name, postgres=self._postgres, stream=stream)
        with psycopg.connect(self._postgres) as connection:
            rows = connection.execute(
                "select session, minute::text, events, active_users, answers, latency_ms"
                " from session_minutes order by 1, 2"
            ).fetchall()
        told = {message["key"]: message["value"] for message in client.stream(stream).read_json()}
        assert sorted(value["events"] for value in told.values()) == sorted(r[2] for r in rows)
        return self._by_stream(rows)

    @property
    def _table(self) -> Path:
        return self._home / "table"

    def _by_stream(self, rows: list[Any]) -> list[Any]:
        """Rows of each stream in their order; between streams there is none."""
        plain = [[str(row[0]).removeprefix(f"/{self._name}"), *row[1:]] for row in rows]
        return sorted(plain, key=lambda row: str(row[0]))


def _event(session: int, number: int) -> dict[str, Any]:
    value = {
        "session": session,
        "n": number,
        "text": "é\n" * (number % 3),
        "at": f"2026-11-15T10:{number // 20:02}:{number % 20 * 3:02}Z",
        "user": f"user-{number % 3}",
        "role": "assistant" if number % 2 else "user",
    }
    return {
        "key": f"msg:{number % _KEYS}", "type": "message", "operation": "set", "value": value
    }  # fmt: skip


def main(master: str, home: str, server: str, postgres: str) -> None:
    spark = build_session("every-pipeline", master=master, conf=CONF)
    try:
        print(json.dumps(Place(spark, Path(home), server, postgres).run_all()))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
