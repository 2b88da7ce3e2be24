"""Operating on pipelines: forgetting a state, dropping a slot, redriving, backfilling."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from headrace.cli.pipeline import app
from headrace.client import Client
from headrace.postgres import ledger
from headrace.postgres.apply import registry
from headrace.postgres.slot_figures import slot_figures
from headrace.spark.pipelines import apply_changes, archive, names, pipeline, postgres_to_stream
from headrace.spark.pipelines import stream_to_postgres as s2p
from headrace.spark.pipelines.backfill import backfill
from headrace.spark.pipelines.base import ConfigError, PipelineConfig, Run
from headrace.spark.pipelines.progress import Progress
from headrace.spark.pipelines.redrive import redrive
from headrace.spark.pipelines.reset import carry_out, plan
from headrace.spark.pipelines.runner import PipelineSpec
from headrace.spark.pipelines.state_lock import locked
from headrace.testing.ports import free_port
from headrace.testing.server_process import ServerProcess
from tests.spark.test_pipelines import rows, run_once

pytestmark = pytest.mark.slow


def headrace(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, " ".join(result.output.split())


def run_spec(spark: SparkSession, spec: PipelineSpec) -> int:
    query = spec.pipeline.start(spark, spec.config, spec.run)
    assert query.awaitTermination(120)
    return sum(report["numInputRows"] for report in query.recentProgress)


def into_postgres(server: ServerProcess, database: str, stream: str) -> str:
    return (
        f'[stream-to-postgres]\nserver = "{server.url}"\npostgres = "{database}"\n'
        f'streams = ["{stream}"]\nquarantine = "{stream}-bad"\nprogress = ""\n'
    )


def out_of_postgres(server: ServerProcess, database: str, stream: str) -> str:
    return (
        f'[postgres-to-stream]\nserver = "{server.url}"\npostgres = "{database}"\n'
        f'stream = "{stream}"\nprogress = ""\n'
    )


# --- reset and drop-slot ---


def test_a_reset_says_what_follows_and_changes_nothing_before_it_is_confirmed(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(into_postgres(server, database, "ops/in"))
    config = s2p.Config(
        server=server.url, streams=("ops/in",), postgres=database, quarantine="ops/in-bad"
    )
    state = tmp_path / "stream-to-postgres"
    with Client(server.url) as client:
        client.stream("ops/in").create("application/json", data=b'[{"key":"a"},{"key":"b"}]')
    run_once(spark, s2p, config, state)
    command = ["reset", "stream-to-postgres", "--config", str(file), "--state", str(tmp_path)]
    code, output = headrace(*command)
    assert (code, "Add --yes to do this." in output) == (2, True)
    assert "rows of session_events stay: they will be there twice" in output
    run_once(spark, s2p, config, state)
    assert rows(database, "select count(*) from session_events") == [(2,)]

    assert headrace(*command, "--yes")[0] == 0
    run_once(spark, s2p, config, state)
    assert rows(database, "select count(*) from session_events") == [(4,)]


INTO_POSTGRES = {"stream-to-postgres": s2p, "apply-changes": apply_changes}


def ledger_of(database: str, writer: str, query: str) -> None:
    """What a batch of `query` leaves in Postgres, for each pipeline that writes there."""
    registry.prepare.__wrapped__(database)
    ledger.prepare.__wrapped__(database)
    with psycopg.connect(database) as connection:
        connection.execute("insert into headrace.ledger values (%s, 0, 7, %s)", (writer, query))
        connection.execute("insert into headrace.ledger_runs values (%s, 'r', '{}')", (writer,))
        connection.execute(
            "insert into headrace.applied_streams values (%s, 's', 't', '[]')", (writer,)
        )


def checkpoint_of(state: Path, query: str) -> None:
    (state / "checkpoint").mkdir(parents=True)
    (state / "checkpoint" / "metadata").write_text(json.dumps({"id": query}))


def kept_of(database: str) -> tuple[int, ...]:
    return tuple(
        rows(database, f"select count(*) from headrace.{table}")[0][0]
        for table in ("ledger", "ledger_runs")
    )


@pytest.mark.parametrize("name", sorted(INTO_POSTGRES))
def test_a_reset_with_a_wrong_state_leaves_the_ledger_of_another_checkpoint_alone(
    name: str, database: str, tmp_path: Path
) -> None:
    config = INTO_POSTGRES[name].Config(postgres=database)
    ledger_of(database, config.writer, "theirs")
    file = tmp_path / "c.toml"
    file.write_text(f'[{name}]\npostgres = "{database}"\n')
    command = ["reset", name, "--config", str(file), "--state", str(tmp_path), "--yes"]
    code, output = headrace(*command)
    assert (code, "has no checkpoint of" in output) == (2, True), output
    assert "add --checkpoint-lost" in output
    assert not (tmp_path / name).exists()

    checkpoint_of(tmp_path / name, "ours")
    code, output = headrace(*command)
    assert code == 0, output
    assert "from another checkpoint, of the query theirs at batch 7, and is left alone" in output
    assert kept_of(database) == (1, 1)
    assert not (tmp_path / name / "checkpoint").exists(), "its own state is forgotten"

    code, output = headrace(*command, "--checkpoint-lost")
    assert code == 0, output
    assert "they are of another checkpoint, said lost, of the query theirs" in output
    assert kept_of(database) == (0, 0)


@pytest.mark.parametrize("name", sorted(INTO_POSTGRES))
def test_a_reset_forgets_the_ledger_of_its_own_checkpoint(
    name: str, database: str, tmp_path: Path
) -> None:
    config = INTO_POSTGRES[name].Config(postgres=database)
    ledger_of(database, config.writer, "ours")
    ledger_of(database, "another-writer", "theirs")
    checkpoint_of(tmp_path, "ours")
    steps = plan(config, Run(False, tmp_path))
    assert "up to batch 7: they are of this checkpoint, of the query ours" in steps[0].sentence
    carry_out(steps)
    assert kept_of(database) == (1, 1)
    applied = rows(database, "select count(*) from headrace.applied_streams")
    assert applied == [(1 if name == "apply-changes" else 2,)]


def test_a_checkpoint_that_begins_while_a_reset_asks_keeps_its_ledger(
    database: str, tmp_path: Path
) -> None:
    config = s2p.Config(postgres=database)
    ledger_of(database, config.writer, "ours")
    checkpoint_of(tmp_path, "ours")
    steps = plan(config, Run(False, tmp_path))
    with psycopg.connect(database) as connection:
        connection.execute("update headrace.ledger set query = 'theirs'")
    carry_out(steps)
    assert kept_of(database) == (1, 1)


@pytest.mark.parametrize("name", sorted(names()))
def test_a_reset_of_a_state_that_is_not_there_is_refused(name: str, tmp_path: Path) -> None:
    code, output = headrace("reset", name, "--state", str(tmp_path / "nowhere"), "--yes")
    assert (code, "was reset" in output) == (2, False), output
    assert not (tmp_path / "nowhere").exists()


def test_a_reset_lets_a_lost_checkpoint_begin_again_with_its_slot_and_streams(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(out_of_postgres(server, database, "ops/out"))
    config = postgres_to_stream.Config(server=server.url, postgres=database, stream="ops/out")
    state = tmp_path / "postgres-to-stream"
    with psycopg.connect(database) as connection:
        connection.execute("create table items (id int primary key)")
        connection.execute("insert into items values (1)")
    run_once(spark, postgres_to_stream, config, state)
    with psycopg.connect(database) as connection:
        connection.execute("insert into items values (2)")
    run_once(spark, postgres_to_stream, config, state)
    command = ["reset", "postgres-to-stream", "--config", str(file), "--state", str(tmp_path)]
    for times in (1, 2):
        code, output = headrace(*command, "--yes")
        assert code == 0, output
        assert "is released. It holds log in Postgres until the next run" in output
        assert f"as the producer postgres-to-stream.{times}" in output
        run_once(spark, postgres_to_stream, config, state)
    with Client(server.url) as client:
        ids = [row["id"] for row in client.stream("ops/out").read_json()]
    assert ids[:2] == [1, 2]
    assert sorted(ids) == [1, 1, 1, 2, 2, 2]


def test_a_reset_without_a_snapshot_goes_on_with_what_the_slot_holds(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(out_of_postgres(server, database, "ops/never") + 'snapshot = "never"\n')
    config = postgres_to_stream.Config(
        server=server.url, postgres=database, stream="ops/never", snapshot="never"
    )
    state = tmp_path / "postgres-to-stream"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table items (id int primary key)")
        run_once(spark, postgres_to_stream, config, state)
        for number in (1, 2):
            connection.execute("insert into items values (%s)", (number,))
            run_once(spark, postgres_to_stream, config, state)
        connection.execute("insert into items values (3)")
        command = ["reset", "postgres-to-stream", "--config", str(file), "--state", str(tmp_path)]
        code, output = headrace(*command, "--yes")
        assert (code, "the changes that the slot still holds" in output) == (0, True), output
        run_once(spark, postgres_to_stream, config, state)
    with Client(server.url) as client:
        ids = [row["id"] for row in client.stream("ops/never").read_json()]
    assert sorted(set(ids)) == [1, 2, 3]
    assert ids[:2] == [1, 2]
    assert ids[-1] == 3


def test_a_reset_leaves_the_slot_of_another_checkpoint_alone(
    server: ServerProcess, database: str, tmp_path: Path
) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(
            "create schema headrace;"
            "create table headrace.slots (slot text, generation int, lsn pg_lsn, rows bigint,"
            " staged boolean, tables text[], owner text, owner_name text)"
        )
        connection.execute(
            "insert into headrace.slots values"
            " ('s', 0, '0/1', 0, false, '{public.items}', 'abc', 'db1:/state')"
        )
    config = postgres_to_stream.Config(server=server.url, postgres=database, slot="s")
    steps = plan(config, Run(False, tmp_path))
    assert "belongs to another consumer, abc of db1:/state, and is left" in steps[0].sentence
    assert steps[0].carry_out is None
    (lost, *_) = plan(config, Run(False, tmp_path), checkpoint_lost=True)
    assert "is released, from the consumer abc of db1:/state" in lost.sentence
    assert lost.carry_out is not None
    lost.carry_out()
    assert rows(database, "select owner from headrace.slots") == [(None,)]


def test_a_running_pipeline_is_not_reset(
    server: ServerProcess, database: str, tmp_path: Path
) -> None:
    with locked(tmp_path / "compact"):
        Progress("compact", 1).write(tmp_path / "compact")
        code, output = headrace("reset", "compact", "--state", str(tmp_path), "--yes")
    assert (code, "is in use by the process" in output) == (2, True)


@pytest.mark.parametrize("name", sorted(set(names()) - {"postgres-to-stream"}))
def test_a_reset_of_every_pipeline_says_what_the_next_run_does(
    name: str, database: str, tmp_path: Path
) -> None:
    given = {"postgres": database} if name in INTO_POSTGRES else {}
    steps = plan(pipeline(name).configure(given), Run(False, tmp_path))
    assert len(steps) >= 2
    assert all(step.sentence.endswith(".") for step in steps)


def test_a_slot_is_dropped_unless_something_reads_it(
    server: ServerProcess, database: str, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(out_of_postgres(server, database, "ops/none") + 'slot = "ops_drop"\n')
    command = ["drop-slot", "--config", str(file)]
    assert headrace(*command)[0] == 1
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("select pg_create_logical_replication_slot('ops_drop', 'pgoutput')")
        code, output = headrace(*command)
        assert (code, "nothing was changed" in output) == (2, True)
        assert slot_figures(database, "ops_drop") is not None
        reading = psycopg.connect(database, autocommit=True, replication="database")
        with reading:
            reading.execute(
                "START_REPLICATION SLOT ops_drop LOGICAL 0/0"
                " (proto_version '1', publication_names 'none')"
            )
            code, output = headrace(*command, "--yes")
            assert (code, "is being read" in output) == (2, True)
            reading.close()
    code, output = headrace(*command, "--yes")
    assert code == 0, output
    assert slot_figures(database, "ops_drop") is None


def test_a_copy_that_is_asked_for_without_a_file_says_which_database_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POSTGRES_URL", f"postgresql://u:p@127.0.0.1:{free_port()}/d")
    code, output = headrace("resnapshot", "--table", "items")
    assert (code, "Without --config this asked the database of $POSTGRES_URL" in output) == (
        1,
        True,
    )


# --- redrive ---


def test_quarantined_records_are_redriven_once_after_a_fix(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    with Client(server.url) as client:
        stream = client.stream("ops/fix")
        stream.create("text/plain")
        for body in (b'{"key": "1"}', b'{"key": "x"}', b"not json", b"\xff"):
            stream.append(body)
        # Of another pipeline, and one that was cut: neither is taken.
        aside = client.stream("ops/fix-bad")
        aside.create("application/json")
        foreign = {"stream_name": "ops/other", "payload": "{}", "ds_offset": "0"}
        cut = {"stream_name": "ops/fix", "payload": "{", "ds_offset": "0"}
        aside.append_json({"reason": "r", "record": foreign})
        aside.append_json({"reason": "r", "record": cut, "cut": {"payload": 9}})
        with psycopg.connect(database) as connection:
            connection.execute(
                "create table events"
                " (stream_name text, event_key int, payload jsonb, ds_offset text)"
            )
        config = s2p.Config(
            server=server.url,
            streams=("ops/fix",),
            postgres=database,
            table="events",
            create_table=False,
            extract={"event_key": "$.key"},
            quarantine="ops/fix-bad",
        )
        run_once(spark, s2p, config, tmp_path / "stream-to-postgres")
        assert len(aside.read_json()) == 5
        with psycopg.connect(database) as connection:
            connection.execute("alter table events alter event_key type text")
        for _ in range(2):  # what is still wrong is set aside again, once for each redrive
            run_spec(spark, redrive(config, tmp_path))
        found = rows(database, "select event_key from events order by 1")
        assert found == [("1",), ("x",)]
        reasons = [record["reason"][:30] for record in aside.read_json()]
    assert len(reasons) == 9
    assert set(reasons[-2:]) == {"the message is not a JSON obje", "the message is not UTF-8 text;"}


def test_refused_rows_of_a_table_are_redriven_into_their_streams_once(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    config = postgres_to_stream.Config(
        server=server.url, tables=("items", "s.orders"), stream="ops/{table}.out",
        quarantine="ops/rows-bad",
    )  # fmt: skip
    with Client(server.url) as client:
        aside = client.stream("ops/rows-bad")
        aside.create("application/json")
        for stream in ("ops/items.out", "ops/orders.out", "ops/itemsxout"):
            aside.append_json({"reason": "r", "record": {"stream": stream, "value": '{"id":1}'}})
        for _ in range(2):
            run_spec(spark, redrive(config, tmp_path))
        for name in ("ops/items.out", "ops/orders.out"):
            assert client.stream(name).read_json() == [{"id": 1}]
        assert len(aside.read_json()) == 3


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (archive.Config(), "Only stream-to-postgres and postgres-to-stream"),
        (postgres_to_stream.Config(format="changes"), "resnapshot"),
        (apply_changes.Config(), "resnapshot"),
        (postgres_to_stream.Config(quarantine=""), "has no quarantine stream"),
    ],
)
def test_what_cannot_be_redriven_is_refused_with_a_reason(
    config: PipelineConfig, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        redrive(config, tmp_path)


def test_a_redrive_without_a_quarantine_stream_says_so(
    server: ServerProcess, tmp_path: Path
) -> None:
    config = s2p.Config(server=server.url, quarantine="ops/nowhere")
    with pytest.raises(ConfigError, match="There is no stream ops/nowhere"):
        redrive(config, tmp_path)


# --- backfill ---


def test_a_range_of_a_stream_is_written_again_once(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    with Client(server.url) as client:
        stream = client.stream("ops/range")
        stream.create("application/json")
        for number in range(6):
            stream.append_json({"key": str(number)})
    config = s2p.Config(server=server.url, streams=("ops/range",), postgres=database)
    run_once(spark, s2p, config, tmp_path / "stream-to-postgres")
    ends = [end for (end,) in rows(database, "select ds_offset from session_events order by 1")]
    with psycopg.connect(database) as connection:
        connection.execute("delete from session_events where event_key in ('2', '3')")
    for _ in range(2):
        assert run_spec(spark, backfill(config, tmp_path, ends[1], ends[3])) == 2
    keys = [key for (key,) in rows(database, "select event_key from session_events order by 1")]
    assert keys == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("start", "end", "sentence"),
    [
        ("earliest", "5", "--to: '5' is not an offset"),
        (f"{5:016d}_{50:016d}", f"{5:016d}_{50:016d}", "--from must lie before --to"),
        ('{"a": "-1"}', f"{5:016d}_{50:016d}", "name different streams"),
        ("{", f"{5:016d}_{50:016d}", "--from is not JSON"),
    ],
)
def test_a_range_that_is_not_one_is_refused(
    start: str, end: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        backfill(s2p.Config(), tmp_path, start, end)


@pytest.mark.parametrize("name", sorted(set(names()) - {"stream-to-postgres"}))
def test_a_backfill_of_another_pipeline_is_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^Only stream-to-postgres can be backfilled; .*\.$"):
        backfill(pipeline(name).configure({}), tmp_path, "earliest", f"{5:016d}_{50:016d}")


def test_the_message_of_several_streams_says_how_to_name_one(tmp_path: Path) -> None:
    config = s2p.Config(streams=("a", "b"))
    with pytest.raises(ConfigError, match="reads several streams, so name the stream"):
        backfill(config, tmp_path, "earliest", f"{5:016d}_{50:016d}")
