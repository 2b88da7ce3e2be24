"""What pipelines are made of, without a session: configuration, progress, explanations."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from typer.testing import CliRunner

from headrace.cli.pipeline import app
from headrace.client import Client, Settings, State
from headrace.errors import BucketNotFound, HeadraceError
from headrace.protocol.offsets import START
from headrace.spark.lake.archives import Archive
from headrace.spark.pipelines import (
    names,
    pipeline,
    postgres_to_stream,
    progress_stream,
    replay,
)
from headrace.spark.pipelines.base import ConfigError, ConfigFile, Run
from headrace.spark.pipelines.compact import Due, Fold
from headrace.spark.pipelines.progress import (
    DEAD,
    RUNNING,
    Meter,
    Progress,
    read_progress,
)
from headrace.spark.pipelines.progress_stream import Publisher
from headrace.spark.pipelines.runner import explain, main
from headrace.spark.pipelines.stream_to_postgres import _wanted
from headrace.testing.ports import free_port
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.conftest import Serve


def test_every_pipeline_has_its_name_a_summary_and_defaults() -> None:
    for name in names():
        found = pipeline(name)
        assert found.name == name
        assert found.summary
        assert found.configure({}) is not None


def config_file(tmp_path: Path, text: str) -> ConfigFile:
    path = tmp_path / "pipelines.toml"
    path.write_text(text, "utf-8", "surrogateescape")
    return ConfigFile.read(path)


def test_a_file_configures_each_pipeline_and_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    file = config_file(
        tmp_path,
        '[spark]\n"spark.executor.memory" = "1g"\n'
        '[stream-to-postgres]\nstreams = ["a", "b"]\npostgres = "postgresql://u:${SECRET}@h/d"\n',
    )
    config: Any = file.of(pipeline("stream-to-postgres"))
    assert (config.streams, config.postgres) == (("a", "b"), "postgresql://u:s3cret@h/d")
    assert file.spark == {"spark.executor.memory": "1g"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[stream-to-postgres]\nstream = 'a'", "there is no key stream; did you mean streams"),
        ("[stream-to-postgres]\nstreams = 'a'", r"Expected `array`.*streams"),
        ("[stream-to-postgres]\ntoken = '${NOT_SET_ANYWHERE}'", "NOT_SET_ANYWHERE is not set"),
        ("[stream-to-postgres", "is not TOML"),
        ("[stream-to-postgres]\nserver = '\udcff'", "is not UTF-8 at byte 31"),
        ("[stream-to-postgres]\nmessages_per_batch = -1", "messages_per_batch must be 1 or more"),
        ("stream-to-postgres = 3", "must be a table"),
        (
            "[stream_to_postgres]",
            r"\[stream_to_postgres\] is not a pipeline; .* Did you mean \[stream-to-postgres\]\?",
        ),
        ("spark = 3", "spark must be a table"),
        ("[spark]\nexecutor.memory = '1g'", r"executor: Spark's own keys begin with spark\."),
        ("[spark]\nspark.jars = ['a']", r"spark\.jars must be a text"),
        ("[spark]\n'spark.x' = '${NOT_SET_ANYWHERE}'", "NOT_SET_ANYWHERE is not set"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_file(tmp_path, text).of(pipeline("stream-to-postgres"))


def test_keys_of_spark_may_be_unquoted_and_hold_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY", "1g")
    text = '[spark]\nspark.executor.memory = "${MEMORY}"\nspark.cores.max = 2\nspark.ui = true\n'
    assert config_file(tmp_path, text).spark == {
        "spark.executor.memory": "1g",
        "spark.cores.max": "2",
        "spark.ui": "true",
    }


def test_a_module_refuses_a_wrong_file_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipelines.toml"
    path.write_text("[archive]\nstreams = 'a'\n")
    monkeypatch.setattr(sys, "argv", ["archive", "--config", str(path)])
    with pytest.raises(SystemExit) as ended:
        main(pipeline("archive"))
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("archive: [archive] Expected `array`")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml cannot be read"):
        ConfigFile.read(tmp_path / "absent.toml")


def test_the_paths_to_extract_become_one_schema() -> None:
    found = _wanted({"a": "$.key", "b": "$.value.status", "c": "$.value.n"})
    assert found == "`key` string, `value` struct<`status`: string, `n`: string>, _corrupt string"
    with pytest.raises(ConfigError, match="not a path"):
        _wanted({"a": "key"})


def report(batch: int, rows: int, end: int, latest: int) -> dict[str, Any]:
    def offset(count: int) -> str:
        return json.dumps({"at": {"s": f"{count:016d}_{count:016d}"}})

    source = {"description": "headrace", "endOffset": offset(end), "latestOffset": offset(latest)}
    return {
        "batchId": batch,
        "numInputRows": rows,
        "processedRowsPerSecond": 10.0,
        "durationMs": {"triggerExecution": 200},
        "sources": [source],
    }


def test_lag_is_the_time_since_everything_was_through() -> None:
    meter = Meter(Progress("p", 1), now=100.0)
    meter.saw(report(0, 5, end=5, latest=9), at=101.0)
    meter.tick(102.0)
    now = meter.progress
    assert (now.rows, now.lag_rows, now.lag_secs) == (5, 4, 2.0)
    meter.saw(report(1, 4, end=9, latest=9), at=103.0)
    meter.tick(103.0)
    assert (now.rows, now.lag_rows, now.lag_secs) == (9, 0, 0.2)
    meter.saw(report(1, 4, end=9, latest=9), at=103.5)
    meter.idle(104.0)
    meter.tick(104.0)
    assert (now.rows, now.lag_secs) == (9, 0.0)


def test_progress_of_a_process_that_is_gone_says_so(tmp_path: Path) -> None:
    Progress("p", os.getpid(), state=RUNNING).write(tmp_path)
    found = read_progress(tmp_path)
    assert found is not None
    assert found.state == RUNNING
    Progress("p", 2**22 + 1, state=RUNNING).write(tmp_path)
    found = read_progress(tmp_path)
    assert found is not None
    assert found.state == DEAD
    assert read_progress(tmp_path / "absent") is None


@pytest.mark.parametrize("text", ['{"pipeline": "p", "pi', '{"other": 1}', "[]", "\udcff", ""])
def test_a_file_that_is_no_progress_is_named(tmp_path: Path, text: str) -> None:
    place = tmp_path / "archive"
    place.mkdir()
    (place / "progress.json").write_text(text, "utf-8", "surrogateescape")
    told = CliRunner().invoke(app, ["status", "--state", str(tmp_path)])
    assert told.exit_code == 2
    assert f"{place}/progress.json is not a progress file" in told.output


def test_a_trace_is_explained_by_the_error_at_its_heart() -> None:
    trace = (
        "[STREAM_FAILED] Query [id = 1] terminated: Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in main\n'
        "headrace.postgres.sink.SinkError: events refuses a row: bad\n"
        "\tat org.apache.spark.Foo(Foo.scala:1)\n"
    )
    assert explain(RuntimeError(trace)).endswith("SinkError: events refuses a row: bad")


def test_a_state_begins_with_the_snapshot_that_compact_publishes(
    server: ServerProcess,
) -> None:
    def change(key: str, operation: str, value: Any = None) -> dict[str, Any]:
        return {"type": "user", "key": key, "value": value, "headers": {"operation": operation}}

    def text(part: str) -> dict[str, Any]:
        return {"type": "chunk", "key": "m", "operation": "append", "value": {"text": part}}

    bucket = "compact-for-a-state"
    with Client(server.url) as client:
        client.bucket(bucket).create()
        stream = client.stream(f"/{bucket}/changes")
        stream.create("application/json")
        fold, start = Fold(Settings(url=server.url), drop_others=False), START.token()
        for part in ("Grace", " Hopper"):
            stream.append_json(
                change("1", "upsert", {"n": 2**60}), change("gone", "delete"), text(part)
            )
            end = stream.head().next_offset
            assert fold(Due(f"/{bucket}/changes", start, end)).messages == 3
            start = end
        stream.append_json(text("!"), change("2", "insert", "é"))

        snapshot = State()
        snapshot.load(stream.snapshot().data)
        assert snapshot.rows("chunk") == {"m": {"text": "Grace Hopper"}}
        view = stream.state()
        updates = list(view.updates())
        assert updates[0].changes[0].kind == "reset"
        assert view.state.rows("user") == {"1": {"n": 2**60}, "2": "é"}
        assert view.state.rows("chunk") == {"m": {"text": "Grace Hopper!"}}
        assert view.offset == stream.head().next_offset


def test_a_stream_that_cannot_be_folded_is_named_and_no_end_of_the_others(
    server: ServerProcess,
) -> None:
    bucket = "compact-of-depth"
    with Client(server.url) as client:
        client.bucket(bucket).create()
        stream = client.stream(f"/{bucket}/deep")
        stream.create("application/json")
        stream.append(b"[%b1%b]" % (b"[" * 1000, b"]" * 1000))
        due = Due(f"/{bucket}/deep", START.token(), stream.head().next_offset)
    folded = Fold(Settings(url=server.url), drop_others=True)(due)
    assert (folded.messages, "nested" in folded.refusal) == (0, True)


@pytest.mark.parametrize("name", ["archive", "sessions", "stream-to-postgres"])
def test_a_pattern_that_is_not_one_is_refused_in_the_file(name: str) -> None:
    told = r"pattern: '\(' is not a regular expression: .*position 0\."
    with pytest.raises(ConfigError, match=told):
        pipeline(name).configure({"pattern": "("})


PLACE = "/pipelines/progress"


def test_progress_is_published_for_all_pipelines_in_one_stream(serve: Serve) -> None:
    server = serve()
    first, second = Progress("one", 1, updated_at=1.0), Progress("two", 2, lag_secs=7.5)
    with Client(server.url) as client:
        followed = client.stream(PLACE)

        def known() -> dict[str, Any]:
            return dict(followed.state().catch_up().rows("pipeline"))

        with Publisher(server.url, "", PLACE, first), Publisher(server.url, "", PLACE, second):
            eventually(lambda: followed_by(client) and len(known()) == 2, "both have said a word")
            second.offsets = [{"source": "long"}]
            second.state = "stopped"
        told = known()
    assert (told["one"]["state"], told["two"]["state"]) == ("starting", "stopped")
    assert told["two"]["lag_secs"] == 7.5
    assert "offsets" not in told["two"], "a place for each of many streams is no news"


def followed_by(client: Client) -> bool:
    try:
        return any(entry.stream_id == "progress" for entry in client.bucket("pipelines").streams())
    except BucketNotFound:
        return False


def test_a_snapshot_stands_for_what_was_published_before(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_stream, "KEPT_MESSAGES", 3)
    monkeypatch.setattr(progress_stream, "EVERY_SECS", 0.01)
    server = serve()
    with Client(server.url) as client:
        with Publisher(server.url, "", PLACE, Progress("gone", 1, rows=5)):
            pass
        progress = Progress("one", 1)
        with Publisher(server.url, "", PLACE, progress):
            eventually(lambda: followed_by(client) and trimmed(client), "history was given up")
            progress.rows = 99
        told = client.stream(PLACE).state().catch_up().rows("pipeline")
    assert (told["gone"]["rows"], told["one"]["rows"]) == (5, 99)


def trimmed(client: Client) -> bool:
    try:
        return bool(client.stream(PLACE).snapshot().data)
    except HeadraceError:
        return False


def test_a_server_that_is_away_holds_up_no_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    with Publisher(f"http://127.0.0.1:{free_port()}", "", PLACE, Progress("one", 1)):
        pass
    said = [record for record in caplog.records if "cannot be published" in record.message]
    assert len(said) == 1, "once, not with every word"


def test_progress_goes_to_a_stream_in_a_bucket_or_nowhere() -> None:
    found = pipeline("archive")
    assert found.configure({"progress": ""}).progress == ""
    with pytest.raises(ConfigError, match="progress must be /bucket/stream"):
        found.configure({"progress": "progress"})


def test_changes_go_to_a_bucket_but_a_state_that_has_begun_keeps_its_streams(
    tmp_path: Path,
) -> None:
    def stream(state: str, **given: Any) -> str:
        config = postgres_to_stream.Config(**given)
        return postgres_to_stream.with_stream(config, Run(True, tmp_path / state)).stream

    assert stream("rows") == "pg-{table}"
    assert stream("own", format="changes", stream="mine") == "mine"
    offsets = tmp_path / "old" / "checkpoint" / "offsets"
    for state in ("new", "new", "old", "old"):
        if state == "old":
            offsets.mkdir(parents=True, exist_ok=True)
            (offsets / "0").touch()
        begun = tmp_path / state / "checkpoint" / "offsets"
        told = stream(state, format="changes")
        assert told == ("pg-{table}" if state == "old" else "/postgres/{table}")
        begun.mkdir(parents=True, exist_ok=True)
        (begun / "0").touch()


class TwoStreams:
    """An archive that knows its streams."""

    def streams(self, version: int) -> dict[str, tuple[str, ...]]:
        return {"a": ("1",), "b": ("1", "2")}


@pytest.mark.parametrize("form", ["rows", "changes"])
def test_a_stream_that_nothing_compacts_is_warned_of(
    form: Literal["rows", "changes"], caplog: pytest.LogCaptureFixture
) -> None:
    postgres_to_stream.warn_of_growth(postgres_to_stream.Config(format=form, stream="pg-{table}"))
    assert ("pg-{table} grows for ever" in caplog.text) == (form == "rows")
    assert ("in memory mode 10 MiB" in caplog.text) == (form == "rows")


def test_streams_are_not_replayed_into_one() -> None:
    archive = cast(Archive, TwoStreams())
    apart = replay.Config(table="t", to="back/{stream}")
    assert [each.target for each in replay.plan(archive, 0, apart)] == ["back/a", "back/b"]
    together = replay.Config(table="t", to="back")
    with pytest.raises(ConfigError, match="Several streams would become one"):
        replay.plan(archive, 0, together)
    alone = replay.Config(table="t", to="back", streams=("b",))
    assert replay.plan(archive, 0, alone) == [replay.Replayed("b", "back", ("1", "2"))]
