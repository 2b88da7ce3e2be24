"""Every key of every pipeline: a value that cannot work is refused when the file is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.cli.pipeline import app
from headrace.spark.pipelines import names, pipeline, stream_to_postgres
from headrace.spark.pipelines import runner as running
from headrace.spark.pipelines.base import ConfigError
from headrace.spark.pipelines.schema_text import check_schema

# What a key cannot be, whatever the pipeline: its type is right, and its value is not.
WRONG: dict[str, tuple[Any, ...]] = {
    "server": ("localhost:4437", "", "ftp://a", "http://", "http://a:x"),
    "electric": ("localhost:3000",),
    "token": ("a\nb", "é"),
    "progress": ("progress",),
    "postgres": ("foo", "", "postgresql://h/d?no_such_key=1"),
    "streams": (["a,b"], [""]),
    "pattern": ("(",),
    "bucket": ("UPPER CASE", "a/b"),
    "starting": ("now", "{", '{"a": 1}', '{"a": "now"}'),
    "messages_per_batch": (0, -1),
    "changes_per_batch": (0,),
    "bytes_per_batch": (0, -1),
    "row_bytes_max": (0,),
    "partitions": (0,),
    "shards": (0, 10_001),
    "late_mins": (-1,),
    "merge_files_secs": (-1,),
    "lake": ("s3://bucket/lake", "gs://bucket/lake"),
    "messages_min": (-1,),
    "bytes_min": (-1,),
    "every_secs": (-1.0,),
    "extract": ({}, {"a": "key"}),
    "schema": ("key strng", "key", "key string,", "a struct<n int", "key string) x", "a array<>"),
    "quarantine": ("a,b", "/only-a-bucket"),
    "stream": ("/only-a-bucket", "__ds/x"),
    "to": ("", "__ds/{stream}"),
    "writer": ("",),
    "producer": ("",),
    "tables": ([], ["a.b.c.d"], [""], ["items", "public.items"], ["a,b"]),
    "slot": ("My-Slot", "x" * 51),
    "keys": (["a,b"], [""]),
    "time": ("at",),
}
# Of the table that is written, or of an archive.
TABLES = {
    "stream-to-postgres": "a.b.c",
    "sessions": "a.b.c",
    "apply-changes": "{topic}",
    "archive": "s3://lake",
    "replay": "s3://lake",
}
# One of a few words, or true or false: the type says all.
WORDS = frozenset(
    {
        "format", "value", "snapshot", "on_lost_slot", "origin", "on_partitions", "without_key",
        "operations", "metadata", "scd_type", "new_columns", "exactly_once", "fail_on_data_loss",
        "create_table", "fire_triggers", "timestamps", "drop_others", "target",
    }
)  # fmt: skip
# Any text can be one: a prefix of names, and what Postgres calls the origin of rows.
FREE = {"prefix", ("stream-to-postgres", "origin"), ("apply-changes", "origin")}

KEYS = [(name, key) for name in names() for key in pipeline(name).config.__struct_fields__]


def wrong_values(name: str, key: str) -> tuple[Any, ...]:
    """A value that cannot be; for keys of any text, one of another type."""
    if key == "table":
        return (TABLES[name],)
    if (name, key) == ("replay", "streams"):
        return ([""],)  # as they are named in the table, with commas, too
    if key in FREE or (name, key) in FREE:
        return (7,)
    return ("no such word",) if key in WORDS else WRONG[key]


@pytest.mark.parametrize(("name", "key"), KEYS)
def test_a_value_that_cannot_be_is_refused_with_its_key(name: str, key: str) -> None:
    for value in wrong_values(name, key):
        with pytest.raises(ConfigError) as refused:
            pipeline(name).configure({key: value})
        assert str(refused.value).startswith(f"[{name}] ")
        assert key in str(refused.value).replace("option ", ""), value


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("archive", {"streams": ["a"], "pattern": "b.*"}, "streams and pattern: give one of them"),
        ("stream-to-postgres", {"bucket": "a", "pattern": "b"}, "pattern and bucket: give one"),
        ("sessions", {"streams": []}, "streams is empty"),
        ("archive", {"prefix": "a"}, "prefix is of the streams of a bucket"),
        ("apply-changes", {"streams": ["a"], "prefix": "a"}, "prefix is of the streams"),
        ("archive", {"strems": ["a"]}, r"there is no key strems; did you mean streams\?"),
        ("replay", {"xyz": 1}, r"there is no key xyz; keys are server, token, "),
        ("archive", {"table": "${NOT_SET_ANYWHERE}"}, "table: The variable NOT_SET_ANYWHERE"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(
    name: str, given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        pipeline(name).configure(given)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("apply-changes", {"streams": []}),
        ("apply-changes", {"prefix": "items"}),
        ("archive", {"starting": '{"a": "latest"}'}),
        ("archive", {"streams": [], "bucket": "lake"}),
        ("stream-to-postgres", {"postgres": "host=/run dbname=d", "table": "s.events"}),
        ("stream-to-postgres", {"quarantine": ""}),
        ("postgres-to-stream", {"stream": "/{schema}/{table}", "quarantine": ""}),
    ],
)
def test_what_can_work_is_taken(name: str, given: dict[str, Any]) -> None:
    assert pipeline(name).configure(given) is not None


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "key string not null, value struct<n: int>",
        "`a b` STRING COMMENT 'it, too', b: decimal(10, 2)",
        "a array<map<string, struct<b: array<int> not null>>>, t timestamp_ntz, s struct<>",
        "i interval day to second, v varchar(10) collate UTF8_LCASE, j variant",
    ],
)
def test_a_schema_of_spark_is_taken(schema: str) -> None:
    check_schema("schema", schema)


def test_a_wrong_type_in_a_schema_is_named() -> None:
    sentence = r"schema: 'key strng' is not a schema .*: strng is not a type \(did you mean string"
    with pytest.raises(ConfigError, match=sentence):
        stream_to_postgres.PIPELINE.configure({"schema": "key strng"})


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("archive", "bytes_per_batch = 0", "bytes_per_batch must be 1 or more"),
        ("compact", 'streams = ["plain"]', "Snapshots are for streams in buckets"),
        (
            "postgres-to-stream",
            'tables = ["a.items", "b.items"]\nformat = "changes"',
            "share the stream",
        ),
        ("postgres-to-stream", 'quarantine = "pg-items"', "and the quarantine stream"),
    ],
)
def test_a_wrong_file_ends_the_command_before_spark_starts(
    name: str, text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*given: object) -> None:
        raise AssertionError("Spark starts")

    monkeypatch.setattr(running, "_built", begin)
    file = tmp_path / "c.toml"
    file.write_text(f'[{name}]\nprogress = ""\n{text}\n')
    command = ["run", name, "--config", str(file), "--state", str(tmp_path / "state")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2, result.output
    assert sentence in " ".join(result.output.split())
