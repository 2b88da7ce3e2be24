"""`sessions`: events folded into figures per session and minute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from pyspark.sql import SparkSession

from headrace.spark.pipelines import sessions
from headrace.spark.pipelines.base import Run
from tests.conftest import Serve
from tests.http.helpers import client_of
from tests.spark.helpers import stored

pytestmark = pytest.mark.slow

JSON = {"Content-Type": "application/json"}


def run(spark: SparkSession, config: sessions.Config, state: Path) -> None:
    assert sessions.start(spark, config, Run(True, state)).awaitTermination(300)


def append(http: httpx.Client, path: str, messages: list[dict[str, Any]]) -> None:
    answer = http.post(path, content=json.dumps(messages).encode(), headers=JSON)
    assert answer.status_code == 204, answer.text


def event(at: str, role: str = "", user: str = "", key: str = "msg:1") -> dict[str, Any]:
    value = {"at": f"2026-11-15T10:{at}Z", "role": role, "user": user}
    return {"key": key, "type": "message", "operation": "set", "value": value}


def test_sessions_become_figures_per_minute_in_postgres_and_in_a_stream(
    spark: SparkSession, serve: Serve, database: str, tmp_path: Path
) -> None:
    # The second batch finds no room for a second producer: each has to be the same one.
    with client_of(serve(DS_LIMITS__MAX_PRODUCERS_PER_STREAM="1")) as http:
        figures_per_minute(spark, http, database, tmp_path)


def figures_per_minute(
    spark: SparkSession, http: httpx.Client, database: str, tmp_path: Path
) -> None:
    http.put("/sessions")
    for name in ("s1", "s2"):
        http.put(f"/sessions/{name}", headers=JSON)
    first = [
        event("00:01", "user", "alice"),
        event("00:03", "assistant"),
        event("00:10", "user", "bob"),
        event("00:16", "assistant"),
        event("00:30", key="user:carol"),
        event("01:05", "user", "alice"),
    ]
    append(http, "/sessions/s1", [*first, {"no": "event"}])
    append(http, "/sessions/s2", [event("00:00", "user", "dora")])
    server = str(http.base_url).rstrip("/")
    config = sessions.Config(
        server=server, bucket="sessions", postgres=database, stream="figures/minutes"
    )
    run(spark, config, tmp_path)
    append(http, "/sessions/s1", [event("01:06", "assistant")])
    run(spark, config, tmp_path)
    with psycopg.connect(database) as connection:
        rows = connection.execute(
            "select session, to_char(minute at time zone 'UTC', 'MI'), events, active_users,"
            " answers, latency_ms from session_minutes order by 1, 2"
        ).fetchall()
    assert rows == [
        ("/sessions/s1", "00", 5, 3, 2, 4000.0),
        ("/sessions/s1", "01", 2, 1, 1, 1000.0),
        ("/sessions/s2", "00", 1, 1, 0, None),
    ]
    latest = {message["key"]: message["value"] for message in stored(http, "figures/minutes")}
    assert latest["/sessions/s1 2026-11-15T10:01Z"]["events"] == 2
    assert len(latest) == 3


def test_after_a_lost_checkpoint_the_figures_are_written_again(
    spark: SparkSession, http: httpx.Client, database: str, tmp_path: Path
) -> None:
    http.put("/lost-figures")
    http.put("/lost-figures/s1", headers=JSON)
    append(http, "/lost-figures/s1", [event("00:01", "user", "alice")])
    config = sessions.Config(
        server=str(http.base_url).rstrip("/"),
        bucket="lost-figures",
        postgres=database,
        stream="figures/lost",
    )
    run(spark, config, tmp_path / "first")
    with psycopg.connect(database) as connection:
        connection.execute("truncate session_minutes")
        connection.commit()
        run(spark, config, tmp_path / "second")
        assert connection.execute("select events from session_minutes").fetchall() == [(1,)]
    first, second = stored(http, "figures/lost")
    assert first == second
