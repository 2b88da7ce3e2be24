"""`compact`: streams of keyed changes folded into the states they amount to."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from headrace.client.state import STATE_MEDIA_TYPE, State
from headrace.protocol.buckets import encode_segment
from headrace.spark.pipelines import compact
from headrace.spark.pipelines.base import ConfigError, Run
from headrace.testing.waiting import eventually
from tests.spark.helpers import batch_rows

pytestmark = pytest.mark.slow

JSON = {"Content-Type": "application/json"}


def run(module: Any, spark: SparkSession, config: Any, state: Path) -> None:
    assert module.start(spark, config, Run(True, state)).awaitTermination(300)


def state_change(chance: random.Random) -> dict[str, Any]:
    """State Protocol."""
    operation = chance.choice(["insert", "update", "upsert", "delete"])
    change: dict[str, Any] = {"type": chance.choice("ab"), "key": str(chance.randrange(8))}
    if operation != "delete":
        change["value"] = chance.choice([{"n": chance.random()}, "é", [1, None]])
    return {**change, "headers": {"operation": operation}}


def session_event(chance: random.Random) -> dict[str, Any]:
    """The session events of the reference."""
    operation = chance.choice(["set", "append", "append", "remove"])
    event = {"type": "chunk", "key": f"msg:{chance.randrange(6)}", "operation": operation}
    return event if operation == "remove" else {**event, "value": {"text": chance.choice("xyz")}}


def append(http: httpx.Client, path: str, messages: list[dict[str, Any]]) -> None:
    answer = http.post(path, content=json.dumps(messages).encode(), headers=JSON)
    assert answer.status_code == 204, answer.text


def state_of(messages: list[Any], snapshot: bytes | None = None) -> Any:
    """The collections that messages fold into."""
    state = State()
    if snapshot is not None:
        state.load(snapshot)
    for message in messages:
        state.apply(message)
    return json.loads(state.dump("x"))["collections"]


def bootstrapped(http: httpx.Client, path: str) -> Any:
    """What a reader that begins with bootstrap makes of a stream."""
    found = http.get(f"{path}/snapshot", follow_redirects=True)
    assert found.headers["Content-Type"] == STATE_MEDIA_TYPE
    offset = found.headers["Stream-Snapshot-Offset"]
    tail = http.get(path, params={"offset": offset}).json()
    return state_of(tail, found.content)


def test_random_histories_fold_to_what_bootstrap_gives(
    spark: SparkSession, http: httpx.Client, tmp_path: Path
) -> None:
    chance = random.Random(5)
    http.put("/folded")
    makers: dict[str, Callable[[random.Random], dict[str, Any]]] = {
        "state": state_change,
        "session": session_event,
        "é ?": session_event,
    }
    paths = {f"/folded/{encode_segment(name)}": make for name, make in makers.items()}
    histories: dict[str, list[dict[str, Any]]] = {}
    for path in paths:
        assert http.put(path, headers=JSON).status_code == 201
        histories[path] = []
    server = str(http.base_url).rstrip("/")
    config = compact.Config(server=server, bucket="folded", messages_min=50)
    for number in range(2):
        for path, make in paths.items():
            more = [make(chance) for _ in range(200)]
            histories[path] += more
            append(http, path, more)
        run(compact, spark, config, tmp_path / str(number))
        for path in paths:
            assert http.get(path, params={"offset": "-1"}).status_code == 410
            more = [paths[path](chance) for _ in range(7)]
            histories[path] += more
            append(http, path, more)
            assert bootstrapped(http, path) == state_of(histories[path])
    # Seven messages are not worth a snapshot.
    before = http.head("/folded/state").headers["Stream-Snapshot-Offset"]
    run(compact, spark, config, tmp_path / "third")
    assert http.head("/folded/state").headers["Stream-Snapshot-Offset"] == before
    # The data source begins with the snapshot where it is asked to.
    rows = batch_rows(http, subscribe="/folded/state", fromSnapshot="true")
    assert (len(rows), rows[0]["content_type"]) == (1 + 7, STATE_MEDIA_TYPE)
    folded = state_of([json.loads(row["value"]) for row in rows[1:]], rows[0]["value"])
    assert folded == state_of(histories["/folded/state"])


def test_messages_that_are_no_changes_are_not_thrown_away(
    spark: SparkSession, http: httpx.Client, tmp_path: Path
) -> None:
    http.put("/mixed-bucket")
    http.put("/mixed-bucket/a", headers=JSON)
    append(http, "/mixed-bucket/a", [{"type": "t", "key": "k", "operation": "set"}, {"free": 1}])
    server = str(http.base_url).rstrip("/")
    config = compact.Config(server=server, bucket="mixed-bucket", messages_min=1)
    with pytest.raises(ConfigError, match="1 of its messages are not keyed changes"):
        run(compact, spark, config, tmp_path)
    assert http.get("/mixed-bucket/a", params={"offset": "-1"}).status_code == 200
    with pytest.raises(ConfigError, match="streams in buckets"):
        run(compact, spark, compact.Config(server=server), tmp_path)


def test_a_stream_that_is_named_and_not_there_is_an_error(
    spark: SparkSession, http: httpx.Client, tmp_path: Path
) -> None:
    http.put("/named-bucket")
    server = str(http.base_url).rstrip("/")
    config = compact.Config(server=server, streams=("/named-bucket/nope",))
    with pytest.raises(ConfigError, match="/named-bucket/nope cannot be compacted"):
        run(compact, spark, config, tmp_path)
    http.put("/named-bucket/free", headers=JSON)
    append(http, "/named-bucket/free", [{"free": 1}])
    streams = ("/named-bucket/nope", "/named-bucket/free")
    both = compact.Config(server=server, streams=streams, messages_min=1)
    with pytest.raises(ConfigError, match=r"nope cannot be compacted.*free: 1 of its messages"):
        run(compact, spark, both, tmp_path)


def test_one_bad_stream_does_not_end_a_continuous_run(
    spark: SparkSession, http: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    http.put("/bad-bucket")
    for name in ("bad", "good"):
        http.put(f"/bad-bucket/{name}", headers=JSON)
    append(http, "/bad-bucket/bad", [{"free": 1}])
    server = str(http.base_url).rstrip("/")
    streams = ("/bad-bucket/bad", "/bad-bucket/gone", "/bad-bucket/good")
    config = compact.Config(server=server, streams=streams, messages_min=1, every_secs=0.01)
    query = compact.start(spark, config, Run(False, tmp_path))
    try:
        for value in (1, 2):  # in another round each
            change = {"type": "t", "key": "k", "operation": "set", "value": value}
            append(http, "/bad-bucket/good", [change])
            tail = http.head("/bad-bucket/good").headers["Stream-Next-Offset"]
            eventually(lambda tail=tail: _snapshot_offset(http) == tail, "a snapshot")  # type: ignore[misc]
        assert query.isActive
    finally:
        query.stop()
    assert query.awaitTermination(60)
    told = capsys.readouterr().err
    assert told.count("/bad-bucket/bad: 1 of its messages are not keyed changes") == 1
    assert told.count("/bad-bucket/gone cannot be compacted") == 1


def _snapshot_offset(http: httpx.Client) -> str | None:
    offset: str | None = http.head("/bad-bucket/good").headers.get("Stream-Snapshot-Offset")
    return offset
