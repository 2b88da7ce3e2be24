"""The two Postgres pipelines from end to end, in one session."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from headrace.cli.pipeline import app
from headrace.client import Client, State
from headrace.postgres.pgoutput import lsn_number
from headrace.spark.pipelines import archive, compact, postgres_to_stream, stream_to_postgres
from headrace.spark.pipelines.base import ConfigError, ConfigFile, Pipeline, Run
from headrace.spark.pipelines.stream_source import messages
from headrace.testing.server_process import ServerProcess
from tests.http.helpers import JSON, client_of

pytestmark = pytest.mark.slow

_NOT_TEXT = b"\xff\xfe\x00" * 100


def execute(url: str, *queries: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for query in queries:
            connection.execute(query.encode())


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchall()


def run_once(spark: SparkSession, module: Any, config: Any, state: Path) -> None:
    query = module.start(spark, config, Run(True, state))
    assert query.awaitTermination(120)


def test_messages_become_rows_and_bad_ones_are_set_aside(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    events = [
        {"key": "user:alice", "type": "presence", "operation": "set", "value": {"n": 1}},
        {"key": "msg:1", "type": "message", "operation": "set", "value": {"n": "x" * 300_000}},
        {"key": "msg:2", "type": "message", "operation": "set", "value": {"n": "\u0000"}},
        {"type": 7},
    ]
    with Client(server.url) as client:
        chat = client.stream("s2p/chat")
        chat.create("application/json")
        chat.append_json(*events)
        chat.append_json([1, 2])
        notes = client.stream("s2p/notes")
        notes.create("text/plain")
        notes.append(b'{"key": "note"}')
        notes.append(b"not json")
        notes.append(b'{"broken')
        notes.append(b'\n\t\r {"key": "indented"}')
        notes.append(_NOT_TEXT)
        config = stream_to_postgres.Config(
            server=server.url,
            streams=("s2p/chat", "s2p/notes"),
            postgres=database,
            quarantine="s2p/bad",
            schema="type string, value struct<n: string>",
        )
        run_once(spark, stream_to_postgres, config, tmp_path)
        chat.append_json({"key": "late"})
        run_once(spark, stream_to_postgres, config, tmp_path)
        bad = client.stream("s2p/bad").read_json()
    found = rows(
        database,
        "select stream_name, event_key, event_type, operation, length(payload::text),"
        " ds_offset is not null, received_at is not null from session_events order by id",
    )
    keys = [(stream, key) for stream, key, *_ in found]
    assert sorted(keys, key=str) == [
        ("s2p/chat", "late"),
        ("s2p/chat", "msg:1"),
        ("s2p/chat", "user:alice"),
        ("s2p/chat", None),
        ("s2p/notes", "indented"),
        ("s2p/notes", "note"),
    ]
    assert keys[-1] == ("s2p/chat", "late")
    alice = next(row for row in found if row[1] == "user:alice")
    assert alice[2:4] == ("presence", "set")
    assert all(row[5] and row[6] for row in found)
    reasons = sorted((b["record"]["stream_name"], b["reason"][:40]) for b in bad)
    assert len(bad) == 5, reasons
    assert [reason for stream, reason in reasons if stream == "s2p/notes"] == [
        "the message is not JSON",
        "the message is not UTF-8 text; payload i",
        "the message is not a JSON object",
    ]
    assert any("u0000" in b["reason"] for b in bad)
    payloads = [b["record"]["payload"] for b in bad if "base64" in b["reason"]]
    assert [base64.b64decode(payload) for payload in payloads] == [_NOT_TEXT]


def test_wide_messages_and_wide_rows_are_cut_into_batches_by_bytes(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    """Read whole, 50,000 of them would be more than the memory of Spark."""
    messages = [{"key": str(n), "value": "x" * 1000} for n in range(6)]
    with Client(server.url) as client:
        data = json.dumps(messages).encode()
        client.stream("wide/in").create("application/json", data=data)
    into = stream_to_postgres.Config(
        server=server.url, streams=("wide/in",), postgres=database, bytes_per_batch=2500
    )
    run_once(spark, stream_to_postgres, into, tmp_path / "into")
    found = rows(database, "select count(distinct received_at), count(*) from session_events")
    assert found == [(3, 6)]
    out = postgres_to_stream.Config(
        server=server.url,
        postgres=database,
        slot="wide",
        tables=("session_events",),
        stream="wide/out",
        bytes_per_batch=2000,
    )
    run = postgres_to_stream.start(spark, out, Run(once=True, state_dir=tmp_path / "out"))
    assert run.awaitTermination(120)
    assert [batch["numInputRows"] for batch in run.recentProgress] == [2, 2, 2]
    with Client(server.url) as client:
        assert len(client.stream("wide/out").read_json()) == 6


def test_changes_go_where_compact_can_give_their_history_back(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("create table compacted (id int primary key, n int)")
        connection.execute("insert into compacted values (1, 0), (2, 0)")
        connection.execute("update compacted set n = 1 where id = 1")
    config = postgres_to_stream.Config(
        server=server.url,
        postgres=database,
        slot="compacted",
        producer="compacted",
        tables=("compacted",),
        format="changes",
    )
    run_once(spark, postgres_to_stream, config, tmp_path)
    fold = compact.Config(server=server.url, bucket="postgres", messages_min=1)
    run_once(spark, compact, fold, tmp_path)
    with Client(server.url) as client:
        found = json.loads(client.stream("/postgres/compacted").snapshot().data)
    rows_now = {"1": {"id": 1, "n": 1}, "2": {"id": 2, "n": 0}}
    assert found["collections"] == {"compacted": rows_now}


def test_what_a_schema_says_is_not_null_must_be_there(spark: SparkSession) -> None:
    schema = (
        "id int not null, of struct<n: int not null>, all array<struct<x: int not null>>,"
        " by map<string, struct<y: int not null, z: map<string, struct<w: int not null>>>>"
    )
    fits = [
        '{"id":1}',
        '{"id":1,"of":{"n":2},"all":[{"x":3}],"by":{"a":{"y":4,"z":{"b":{"w":5}}}}}',
        '{"id":1,"of":null,"all":[],"by":{"a":null,"b":{"y":6}}}',
    ]
    misfits = [
        "{}",
        '{"id":null}',
        '{"id":1,"of":{}}',
        '{"id":1,"all":[{"x":1},{}]}',
        '{"id":1,"by":{"a":{"y":1},"b":{}}}',
        '{"id":1,"by":{"a":{"y":1,"z":{"b":{"w":null}}}}}',
    ]
    given = [("s", text, "0") for text in [*fits, *misfits]]
    read = spark.createDataFrame(given, "stream string, value string, offset string")
    found = stream_to_postgres.rows(read, stream_to_postgres.Config(schema=schema)).collect()
    assert [row.payload for row in found if row.reason is None] == fits
    assert {row.reason for row in found[len(fits) :]} == {
        f"the message does not fit the schema {schema}"
    }


def test_what_stands_behind_a_message_is_not_lost_in_a_column_of_text(spark: SparkSession) -> None:
    """Of text streams: the server refuses such a message in a JSON stream."""
    bad = [
        "{} x",
        '{"a":1},{"a":2}',
        '{"a":1}]',
        '{"a":1}}',
        '{"a":1},"v":{}',
        "{}{}",
        '{"a":1}],[',
    ]
    good = ["{}", ' {"a":[1,{"b":"]}"}]}\r\n', '{"a":"\\""}']
    given = [("s", text, "0", "text/plain") for text in [*good, *bad]]
    columns = "stream string, value string, offset string, content_type string"
    read = spark.createDataFrame(given, columns)
    for config in (stream_to_postgres.Config(), stream_to_postgres.Config(schema="a string")):
        found = stream_to_postgres.rows(read, config).collect()
        assert [row.payload for row in found if row.reason is None] == good
        assert {row.reason for row in found[len(good) :]} == {"the message is not JSON"}


def test_commits_that_postgres_lost_are_missed_and_can_be_written_again(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    config = stream_to_postgres.Config(
        server=server.url, streams=("lost-commits",), postgres=database, messages_per_batch=2
    )

    def run() -> None:
        run_once(spark, stream_to_postgres, config, tmp_path)

    with Client(server.url) as client:
        stream = client.stream("lost-commits")
        stream.create("application/json")
        stream.append_json({"n": 0}, {"n": 1})
        run()
        execute(database, "create table backup as select * from headrace.ledger")
        stream.append_json(*({"n": n} for n in range(2, 6)))
        run()
        execute(
            database,
            "delete from session_events where (payload->>'n')::int > 1",
            "delete from headrace.ledger",
            "insert into headrace.ledger select * from backup",
        )
        stream.append_json({"n": 6})
        with pytest.raises(StreamingQueryException, match="Postgres has lost commits"):
            run()
    checkpoint = tmp_path / "checkpoint"  # as the message says
    for log, first in (("commits", 0), ("offsets", 1)):
        for file in (checkpoint / log).glob("[0-9]*"):
            if int(file.name) >= first:
                file.unlink()
    run()
    found = rows(database, "select (payload->>'n')::int from session_events order by id")
    assert [n for (n,) in found] == list(range(7))


def test_what_was_set_aside_is_not_read_again(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    config = stream_to_postgres.Config(
        server=server.url,
        pattern="aside/.*",
        postgres=database,
        quarantine="aside/bad",
        schema="reason int",  # which the quarantine's own records do not fit
    )
    with Client(server.url) as client:
        client.stream("aside/in").create("application/json", data=b"[1]")
        for _ in range(3):
            run_once(spark, stream_to_postgres, config, tmp_path)
        assert len(client.stream("aside/bad").read_json()) == 1
    with pytest.raises(ValueError, match="both read and the quarantine stream"):
        stream_to_postgres.Config(streams=("a", "aside/bad"), quarantine="aside/bad")


def test_a_trimmed_stream_is_read_from_where_it_begins_now_if_that_is_asked_for(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    with client_of(server) as http:
        http.put("/trimmed")
        tail = http.put("/trimmed/a", headers=JSON, content=b'[{"key": "old"}]')
        offset = tail.headers["Stream-Next-Offset"]
        http.put(f"/trimmed/a/snapshot/{offset}", headers=JSON, content=b"{}")
        http.post("/trimmed/a", headers=JSON, content=b'[{"key": "new"}]')
        assert http.get("/trimmed/a", params={"offset": "-1"}).status_code == 410
        http.put("/trimmed/own", headers=JSON, content=b'[{"key": "progress"}]')
    config = stream_to_postgres.Config(
        server=server.url, bucket="trimmed", postgres=database, progress="/trimmed/own"
    )
    with pytest.raises(StreamingQueryException, match="DataLoss"):
        run_once(spark, stream_to_postgres, config, tmp_path / "strict")
    config = msgspec.structs.replace(config, fail_on_data_loss=False)
    run_once(spark, stream_to_postgres, config, tmp_path / "lenient")
    assert rows(database, "select event_key from session_events") == [("new",)]
    archived = archive.Config(
        server=server.url, bucket="trimmed", prefix="a", fail_on_data_loss=False
    )
    query = messages(spark, archived).writeStream.format("memory").queryName("trimmed")
    assert query.trigger(availableNow=True).start().awaitTermination(120)
    assert spark.table("trimmed").select("value").collect() == [('{"key": "new"}',)]


@pytest.mark.parametrize("pipeline", [stream_to_postgres.PIPELINE, archive.PIPELINE])
def test_a_name_with_a_comma_is_refused_in_a_list(pipeline: Pipeline) -> None:
    with pytest.raises(ConfigError, match="'x,y' has a comma, so name it by pattern"):
        pipeline.configure({"streams": ["x,y"]})


@pytest.mark.parametrize(
    ("extract", "sentence"),
    [
        ({"a": "$.value", "b": "$.value.n"}, "as a whole and in part"),
        ({"b": "$.value.n", "a": "$.value"}, "as a whole and in part"),
        ({}, "names no column"),
        ({"a": "$.tags[0]"}, "is not a path"),
        ({"a": "$."}, "is not a path"),
    ],
)
def test_paths_that_cannot_be_extracted_are_refused(extract: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        stream_to_postgres.PIPELINE.configure({"extract": extract})


def test_inserts_become_rows_of_a_stream_as_in_the_reference(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    execute(
        database,
        "create table items (id serial primary key, title text not null, body text)",
        "insert into items (title) values ('before')",
    )
    config = postgres_to_stream.Config(
        server=server.url, postgres=database, slot="rows", stream="p2s-{schema}-{table}"
    )
    run_once(spark, postgres_to_stream, config, tmp_path)
    execute(
        database,
        "insert into items (title, body) values ('after', 'x')",
        "update items set title = 'changed' where id = 1",
        "delete from items where id = 1",
    )
    run_once(spark, postgres_to_stream, config, tmp_path)
    with Client(server.url) as client:
        found = client.stream("p2s-public-items").read_json()
    assert found == [
        {"id": 1, "title": "before", "body": None},
        {"id": 2, "title": "after", "body": "x"},
    ]


def test_changes_become_state_protocol_messages_by_key_or_by_table(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    execute(
        database,
        "create table items (id int primary key, title text)",
        "alter table items replica identity full",
    )
    tables = postgres_to_stream.Config(
        server=server.url, postgres=database, slot="tables", stream="p2s-all", format="changes"
    )
    keys = postgres_to_stream.Config(
        server=server.url,
        postgres=database,
        slot="keys",
        stream="p2s-items/{key}",
        format="changes",
        operations=("insert", "update", "delete"),  # a truncate would end it: no stream to reset
        producer="by-key",
    )
    run_once(spark, postgres_to_stream, tables, tmp_path / "tables")
    run_once(spark, postgres_to_stream, keys, tmp_path / "keys")
    execute(
        database,
        "insert into items values (1, 'a')",
        "update items set title = 'b'",
        "update items set id = 2",
        "delete from items",
        "truncate items",
    )
    run_once(spark, postgres_to_stream, tables, tmp_path / "tables")
    run_once(spark, postgres_to_stream, keys, tmp_path / "keys")
    with Client(server.url) as client:
        columns, *found = client.stream("p2s-all").read_json()
        of_one = client.stream("p2s-items/1").read_json()
        of_two = client.stream("p2s-items/2").read_json()
    assert columns["headers"] == {"control": "schema"}, "before the rows of the snapshot"
    assert found[-1]["headers"]["control"] == "reset"
    steps = [(m["headers"]["operation"], m["key"], m.get("value")) for m in found[:-1]]
    assert steps == [
        ("insert", "1", {"id": 1, "title": "a"}),
        ("update", "1", {"id": 1, "title": "b"}),
        ("insert", "2", {"id": 2, "title": "b"}),
        ("delete", "1", None),
        ("delete", "2", None),
    ]
    assert {m["type"] for m in found[:-1]} == {"items"}
    assert [m["headers"]["operation"] for m in of_one] == ["insert", "update", "delete"]
    assert [m["headers"]["operation"] for m in of_two] == ["insert", "delete"]


def test_changes_carry_what_metadata_asks_for(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    execute(
        database,
        "create table items (id int primary key, title text)",
        "alter table items replica identity full",
        "insert into items values (0, 'copied')",
    )
    config = postgres_to_stream.Config(
        server=server.url,
        postgres=database,
        stream="p2s/metadata",
        format="changes",
        metadata=("before", "lsn"),
        timestamps=True,
    )
    run_once(spark, postgres_to_stream, config, tmp_path)
    [(before,)] = rows(database, "select now()")
    execute(
        database,
        "insert into items values (1, 'a'), (2, 'b')",
        "update items set title = 'c' where id = 1",
        "update items set id = 3 where id = 2",
        "delete from items where id = 3",
    )
    [(after, end)] = rows(database, "select clock_timestamp(), pg_current_wal_lsn()::text")
    run_once(spark, postgres_to_stream, config, tmp_path)
    with Client(server.url) as client:
        _, copied, *found = client.stream("p2s/metadata").read_json()
    assert copied["headers"]["lsn"]
    assert [(m["headers"]["operation"], m["key"], m.get("old_value")) for m in found] == [
        ("insert", "1", None),
        ("insert", "2", None),
        ("update", "1", {"id": 1, "title": "a"}),
        ("insert", "3", None),
        ("delete", "2", {"id": 2, "title": "b"}),
        ("delete", "3", {"id": 3, "title": "b"}),
    ]
    places = [(lsn_number(m["headers"]["lsn"]), m["headers"]["seq"]) for m in found]
    assert places == sorted(places)
    assert places[0][0] == places[1][0] < places[2][0], "an LSN is that of the commit"
    assert places[-1][0] <= lsn_number(end)
    times = [datetime.fromisoformat(m["headers"]["timestamp"]) for m in found]
    assert all(before <= at <= after for at in times)
    assert all(m["headers"]["timestamp"].endswith("Z") for m in found)


def test_metadata_needs_changes_to_be_part_of() -> None:
    with pytest.raises(ConfigError, match='it needs format = "changes"'):
        postgres_to_stream.PIPELINE.configure({"metadata": ["lsn"]})


def test_changes_fold_to_what_the_table_holds(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    """Large values that did not change, changes of key, and keys of several columns."""
    execute(
        database,
        "create table items (a text, b text, n int, body text, primary key (a, b))",
        "alter table items alter body set storage external",
        "insert into items select a, b, 0, repeat(a, 9000) from (values ('x/y', 'z'), ('x', 'y/z'),"
        " ('%', ''), ('m', 'n')) t (a, b)",
    )
    config = postgres_to_stream.Config(
        server=server.url, postgres=database, slot="folded", stream="p2s-fold", format="changes"
    )
    run_once(spark, postgres_to_stream, config, tmp_path)
    execute(
        database,
        "update items set n = 1",
        "update items set a = 'moved' where a = 'm'",
        "delete from items where a = 'x'",
    )
    run_once(spark, postgres_to_stream, config, tmp_path)
    state = State()
    with Client(server.url) as client:
        for message in client.stream("p2s-fold").read_json():
            state.apply(message)
    with psycopg.connect(database) as connection:
        rows = connection.execute("select a, b, n, body from items").fetchall()
    folded = [(row["a"], row["b"], row["n"], row["body"]) for row in state.rows("items").values()]
    assert sorted(folded) == sorted(rows)
    assert sorted(state.rows("items")) == ["%25/", "moved/n", "x%2Fy/z"]


def test_a_table_altered_and_copied_again_folds_to_what_it_holds(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    """Among keys that are empty, and that look like the name of the empty one."""
    execute(
        database,
        "create table items (id text primary key)",
        "insert into items values (''), ('a'), ('%empty'), ('%25empty')",
    )
    file = tmp_path / "pipelines.toml"
    file.write_text(
        f'[postgres-to-stream]\npostgres = "{database}"\nslot = "again"\nserver = "{server.url}"\n'
        'stream = "p2s-again"\nformat = "changes"\n'
    )
    config = ConfigFile.read(file).of(postgres_to_stream.PIPELINE)
    run_once(spark, postgres_to_stream, config, tmp_path)
    execute(database, "alter table items add n int default 7")
    asked = CliRunner().invoke(app, ["resnapshot", "--table", "items", "--config", str(file)])
    assert asked.output == "items will be copied again by the consumer of the slot again.\n"
    run_once(spark, postgres_to_stream, config, tmp_path)
    state = State()
    with Client(server.url) as client:
        messages = client.stream("p2s-again").read_json()
    for message in messages:
        state.apply(message)
    controls = [message["headers"].get("control") for message in messages]
    reset = controls.index("reset")
    assert (controls[0], controls[reset + 1]) == ("schema", "schema")
    assert messages[reset + 1]["type"] == "items"
    types = [column["type"] for column in messages[reset + 1]["value"]["columns"]]
    assert types == ["text", "integer"]
    assert state.rows("items") == {
        key: {"id": row_id, "n": 7}
        for key, row_id in [
            ("%empty", ""), ("a", "a"), ("%25empty", "%empty"), ("%2525empty", "%25empty")
        ]
    }  # fmt: skip
    refused = CliRunner().invoke(app, ["resnapshot", "--table", "absent", "--config", str(file)])
    assert refused.exit_code == 2
    assert "follows public.items, but not public.absent" in refused.output


@pytest.mark.parametrize("tables", [("a", "b"), ("public.a", "other.a")])
def test_tables_whose_resets_would_meet_in_one_stream_are_refused(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, ...]
) -> None:
    stream = "all" if tables == ("a", "b") else "of-{table}"
    config = postgres_to_stream.Config(tables=tables, stream=stream, format="changes")
    with pytest.raises(ConfigError, match="share the stream"):
        postgres_to_stream.start(spark, config, Run(True, tmp_path))


def test_what_came_from_a_stream_does_not_go_back(
    spark: SparkSession, server: ServerProcess, database: str, tmp_path: Path
) -> None:
    with Client(server.url) as client:
        client.stream("loop/in").create("application/json", data=json.dumps([{"key": "x"}]))
        there = stream_to_postgres.Config(
            server=server.url, streams=("loop/in",), postgres=database, writer="loop"
        )
        back = postgres_to_stream.Config(
            server=server.url,
            postgres=database,
            tables=("session_events",),
            slot="loop",
            stream="loop/back",
            snapshot="never",
            producer="loop",
        )
        stream_to_postgres.create_table(there)
        run_once(spark, postgres_to_stream, back, tmp_path / "back")
        run_once(spark, stream_to_postgres, there, tmp_path / "there")
        execute(database, "insert into session_events (stream_name, payload) values ('own', '{}')")
        run_once(spark, postgres_to_stream, back, tmp_path / "back")
        assert [row["stream_name"] for row in client.stream("loop/back").read_json()] == ["own"]
