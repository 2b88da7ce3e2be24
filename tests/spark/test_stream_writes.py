"""Writing rows as messages: the data source's classes against a live server."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import count
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyspark import TaskContext

from headrace.changes.rejected import Rejected
from headrace.client import Settings
from headrace.postgres.ledger import Claim
from headrace.spark.options import OptionError
from headrace.spark.quarantine import Quarantine
from headrace.spark.streams.chunking import BadRow, Chunker, json_body
from headrace.spark.streams.offset_tracker import StreamProblem
from headrace.spark.streams.stream_options import write_options
from headrace.spark.streams.stream_writer import TaskCommit
from tests.conftest import Serve
from tests.http.helpers import client_of
from tests.spark.helpers import batch_rows, put, schema_of, shipped, source, stored

_numbers = count()
ROWS = schema_of("stream string, value string")
VALUES = schema_of("value string")


@pytest.fixture
def name() -> str:
    return f"spark/write/{next(_numbers)}"


def batches(rows: list[dict[str, Any]], size: int) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist(rows[i : i + size]) for i in range(0, len(rows), size)]


def write(
    http: httpx.Client, rows: list[dict[str, Any]], arrow_rows: int = 1000, **options: Any
) -> TaskCommit:
    """What one task does."""
    schema = ROWS if "stream" in rows[0] else VALUES
    writer = shipped(source(http, **options).writer(schema, overwrite=False))
    written = writer.write(iter(batches(rows, arrow_rows)))
    assert isinstance(written, TaskCommit)
    return written


def test_rows_become_messages_in_order(http: httpx.Client, name: str) -> None:
    put(http, name)
    rows = [{"value": json.dumps({"n": n})} for n in range(2500)]
    written = write(http, rows, stream=name, chunkRows=1000)
    assert (written.rows, written.appends, written.repeated) == (2500, 3, 0)
    assert [message["n"] for message in stored(http, name)] == list(range(2500))


def test_the_column_names_the_stream_and_the_option_overrides_it(
    http: httpx.Client, name: str
) -> None:
    for suffix in ("a", "b", "c"):
        put(http, f"{name}/{suffix}")
    rows = [{"stream": f"{name}/{'ab'[n % 2]}", "value": str(n)} for n in range(10)]
    write(http, rows)
    assert stored(http, f"{name}/a") == [0, 2, 4, 6, 8]
    assert stored(http, f"{name}/b") == [1, 3, 5, 7, 9]
    write(http, rows, stream=f"{name}/c")
    assert stored(http, f"{name}/c") == list(range(10))


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream"])
def test_text_and_bytes_keep_one_message_per_row(
    http: httpx.Client, name: str, content_type: str
) -> None:
    put(http, name, content_type=content_type)
    rows = [{"value": text} for text in ("é,", "[1]", "x" * 300_000)]
    write(http, rows, stream=name)
    found = [row["value"] for row in batch_rows(http, subscribe=name)]
    assert found == [row["value"].encode() for row in rows]


def test_what_an_append_holds_does_not_depend_on_how_arrow_cut_the_rows(
    http: httpx.Client, name: str
) -> None:
    rows = [{"value": str(n)} for n in range(100)]
    put(http, name)
    options = {"stream": name, "chunkRows": 30, "producerId": name}
    assert write(http, rows, arrow_rows=7, **options).repeated == 0
    again = write(http, rows, arrow_rows=100, **options)
    assert (again.appends, again.repeated) == (4, 4)
    assert stored(http, name) == list(range(100))


def test_a_row_that_names_a_url_is_sent_nowhere(http: httpx.Client, name: str) -> None:
    """With `{key}` in the name of a stream, the key is the database's: it chooses no server."""
    elsewhere = f"{http.base_url}/v1/stream/{name}"
    put(http, name)
    with pytest.raises(StreamProblem, match="empty"):
        write(http, [{"stream": elsewhere, "value": "1"}])
    assert stored(http, name) == []


def test_a_task_that_runs_again_writes_only_what_is_missing(http: httpx.Client, name: str) -> None:
    put(http, name)
    writer = source(http, stream=name, chunkRows=10).writer(VALUES, overwrite=False)
    rows = [{"value": str(n)} for n in range(50)]
    shipped(writer).write(iter(batches(rows[:20], 10)))
    assert shipped(writer).write(iter(batches(rows, 10))).repeated == 2
    assert stored(http, name) == list(range(50))


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_other_rows_are_not_taken_for_those_that_are_there(
    http: httpx.Client, name: str, content_type: str
) -> None:
    """As after a lost checkpoint, whose batches are counted from 0 again."""
    put(http, name, content_type=content_type)
    before = [{"value": str(n)} for n in range(10, 15)]
    options: dict[str, Any] = {"stream": name, "producerId": name}
    write(http, before, **options)
    assert write(http, before, **options).repeated
    for others in ([{"value": "99"}], [{"value": str(n)} for n in range(20, 25)]):
        with pytest.raises(StreamProblem, match=rf"{name}-0 has already written different rows"):
            write(http, others, **options)
    assert [int(row["value"]) for row in batch_rows(http, subscribe=name)] == list(range(10, 15))


def test_a_write_that_names_its_batch_is_one_producer_however_many_there_are(
    serve: Serve, name: str
) -> None:
    """As inside foreachBatch: a producer per batch would use up what a stream remembers."""
    with client_of(serve(DS_LIMITS__MAX_PRODUCERS_PER_STREAM="1")) as http:
        put(http, name)
        options: dict[str, Any] = {"stream": name, "producerId": "mine"}
        for number in range(3):
            write(http, [{"value": str(number)}], **options, batch=number)
        assert write(http, [{"value": "2"}], **options, batch=2).repeated == 1
        late = "batch 1 comes late.*has written batch 2.*set producerId .in a pipeline, producer"
        with pytest.raises(StreamProblem, match=late):
            write(http, [{"value": "1"}], **options, batch=1)
        assert stored(http, name) == [0, 1, 2]
        with pytest.raises(StreamProblem, match=r"already has 1 producers.*producerId and batch"):
            write(http, [{"value": "3"}], stream=name)


@pytest.mark.slow
def test_hundreds_of_batches_of_every_kind_are_a_producer_each(
    serve: Serve, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query's batches, those of foreachBatch, and what they set aside: one for each partition."""
    task = TaskContext()
    task._partitionId = 0
    monkeypatch.setattr(TaskContext, "_taskContext", task)
    with client_of(serve(DS_LIMITS__MAX_PRODUCERS_PER_STREAM="3")) as http:
        put(http, name)
        query = shipped(
            source(http, stream=name, committed="none").streamWriter(VALUES, overwrite=False)
        )
        aside = Quarantine(Settings(url=str(http.base_url)), name)
        for number in range(300):
            task._localProperties = {
                "sql.streaming.queryId": "query", "streaming.sql.batchId": str(number)
            }  # fmt: skip
            query.write(iter(batches([{"value": str(number)}], 1)))
            write(http, [{"value": str(number)}], stream=name, producerId="each", batch=number)
            aside.of(Claim("w", "query", 0, number)).send([Rejected({"n": number}, "bad")])
        numbers = [m["record"]["n"] if isinstance(m, dict) else m for m in stored(http, name)]
        assert numbers == [number for number in range(300) for _ in range(3)]
        with pytest.raises(StreamProblem, match=r"already has 3 producers"):
            write(http, [{"value": "1"}], stream=name)


def test_a_batch_needs_a_producer_and_a_query_counts_its_own(http: httpx.Client) -> None:
    with pytest.raises(OptionError, match="batch needs the option producerId"):
        source(http, stream="a", batch="1").writer(VALUES, overwrite=False)
    with pytest.raises(OptionError, match="batch is for batch writes"):
        source(http, stream="a", producerId="p", batch="1").streamWriter(VALUES, overwrite=False)


def test_a_full_stream_is_named_with_the_setting_to_raise(serve: Serve, name: str) -> None:
    with client_of(serve(DS_LIMITS__MAX_STREAM_BYTES="1000")) as http:
        put(http, name)
        told = rf"{name}: .*larger than 1000 bytes.*DS_LIMITS__MAX_STREAM_BYTES.*compact"
        with pytest.raises(StreamProblem, match=told):
            write(http, [{"value": json.dumps("x" * 2000)}], stream=name)


def test_without_the_mechanism_a_task_that_runs_again_repeats_itself(
    http: httpx.Client, name: str
) -> None:
    put(http, name)
    options = {"stream": name, "exactlyOnce": "false"}
    writer = source(http, **options).writer(VALUES, overwrite=False)
    for _ in range(2):
        writer.write(iter(batches([{"value": "1"}], 1)))
    assert stored(http, name) == [1, 1]


def test_a_stream_is_created_where_that_is_asked_for(http: httpx.Client, name: str) -> None:
    with pytest.raises(StreamProblem, match=rf"{name}: There is no stream"):
        write(http, [{"value": "1"}], stream=name)
    write(http, [{"value": "1"}], stream=name, createStreams="true")
    assert stored(http, name) == [1]
    text = f"{name}/text"
    write(http, [{"value": "1"}], stream=text, createStreams="true", contentType="text/plain")
    assert http.head(f"/v1/stream/{text}").headers["Content-Type"] == "text/plain"


def test_what_many_streams_hold_is_asked_in_one_request(http: httpx.Client, name: str) -> None:
    types = ["application/json", "text/plain"] * 10
    for number, content_type in enumerate(types):
        put(http, f"{name}/{number}", content_type=content_type)
    rows = [{"stream": f"{name}/{n % len(types)}", "value": str(n)} for n in range(60)]
    before = requests(http)
    write(http, rows)
    after = requests(http)
    assert after["head"] == before["head"]
    assert after["tails"] == before["tails"] + 1
    assert stored(http, f"{name}/0") == [0, 20, 40]
    assert http.get(f"/v1/stream/{name}/1").text == "12141"


def test_of_many_streams_the_one_that_is_missing_is_named(http: httpx.Client, name: str) -> None:
    put(http, f"{name}/there")
    rows = [{"stream": f"{name}/{which}", "value": "1"} for which in ("there", "missing")]
    with pytest.raises(StreamProblem, match=rf"{name}/missing: There is no stream"):
        write(http, rows)
    with pytest.raises(StreamProblem, match=r"x{5000}: .*4096 bytes"):
        write(http, [rows[0], {"stream": "x" * 5000, "value": "1"}])
    write(http, rows, createStreams="true")
    assert stored(http, f"{name}/missing") == [1]


def test_of_many_streams_the_one_that_holds_something_else_is_named(
    http: httpx.Client, name: str
) -> None:
    put(http, f"{name}/json")
    put(http, f"{name}/text", content_type="text/plain")
    rows = [{"stream": f"{name}/{which}", "value": "1"} for which in ("json", "text")]
    with pytest.raises(StreamProblem, match=rf"{name}/text: .*content type is text/plain"):
        write(http, rows, createStreams="true")


def requests(http: httpx.Client) -> Counter[str]:
    """How many requests of each operation the server has answered."""
    found = re.findall(
        r'headrace_requests_total\{operation="(\w+)",.*\} (\d+)', http.get("/metrics").text
    )
    counts: Counter[str] = Counter()
    for operation, number in found:
        counts[operation] += int(number)
    return counts


def test_a_closed_stream_is_named_and_nothing_is_lost(http: httpx.Client, name: str) -> None:
    put(http, name, b"1")
    http.post(f"/v1/stream/{name}", headers={"Stream-Closed": "true"})
    with pytest.raises(StreamProblem, match=rf"{name}.*closed"):
        write(http, [{"value": "2"}], stream=name)
    assert stored(http, name) == [1]


def test_a_message_over_the_server_s_limit_is_named_and_none_of_its_append_is_written(
    serve: Serve, name: str
) -> None:
    with client_of(serve(DS_LIMITS__MAX_BODY_BYTES="200000")) as http:
        put(http, name)
        rows = [{"value": "1"}, {"value": json.dumps("x" * 300_000)}]
        with pytest.raises(StreamProblem, match=rf"{name}.*200000"):
            write(http, rows, stream=name)
        assert stored(http, name) in ([], [1])
        # What went in before the large one is recognised when the rows come again.


@pytest.mark.parametrize("value", ["{", "1,2", "", "nul", '{"a":1}]', "1],[2", None])
def test_a_value_that_is_not_one_json_value_is_named(
    http: httpx.Client, name: str, value: str | None
) -> None:
    put(http, name)
    with pytest.raises(BadRow, match=name):
        write(http, [{"value": "1"}, {"value": value}], stream=name)
    assert stored(http, name) == []


def test_values_that_only_together_are_json_are_refused() -> None:
    with pytest.raises(BadRow):
        json_body("s", pa.array([b"[1", b"2]"]))
    with pytest.raises(BadRow):
        json_body("s", pa.array([b"[1", b"2]", b"3,4"]))
    assert json_body("s", pa.array([b" 1 ", b"[2]"])) == b"[ 1 ,[2]]"


def test_chunks_end_by_rows_and_by_bytes_of_the_rows_alone() -> None:
    values = [bytes(size) for size in (10, 10, 50, 10, 200, 10)]
    for step in (1, 2, 6):
        chunker, found = Chunker(3, 64), list[pa.Array]()
        for first in range(0, 6, step):
            found += list(chunker.add("s", pa.array(values[first : first + step])))
        found += [chunk for _, chunk in chunker.rest()]
        sizes = [[len(value) for value in chunk.to_pylist()] for chunk in found]
        assert sizes == [[10, 10], [50, 10], [200], [10]]


def test_a_row_that_names_no_stream_is_refused(http: httpx.Client, name: str) -> None:
    put(http, name)
    with pytest.raises(StreamProblem, match="names no stream"):
        write(http, [{"stream": name, "value": "1"}, {"stream": None, "value": "2"}])


def test_what_cannot_be_written_is_refused_before_a_task_runs(http: httpx.Client) -> None:
    with pytest.raises(OptionError, match="Streams only grow"):
        source(http, stream="a").writer(VALUES, overwrite=True)
    with pytest.raises(OptionError, match="column value"):
        source(http, stream="a").writer(schema_of("value long"), overwrite=False)
    for extra in ("key string", "headers string"):
        with pytest.raises(OptionError, match=f"column {extra.split()[0]} would be lost"):
            source(http, stream="a").writer(schema_of(f"value string, {extra}"), overwrite=False)
    with pytest.raises(OptionError, match="Name the stream"):
        source(http).writer(VALUES, overwrite=False)


SURROGATE, DEEP, INFINITE = r'"\ud800"', "[" * 1024 + "]" * 1024, '{"n":1e400}'


def write_aside(
    http: httpx.Client, name: str, rows: list[dict[str, Any]], **more: Any
) -> TaskCommit:
    """As the same producer each time, with a quarantine and streams that are made."""
    more |= {"createStreams": "true", "producerId": name, "quarantineStream": f"{name}-aside"}
    return write(http, rows, **more)


def set_aside(http: httpx.Client, name: str) -> list[tuple[str, str | None]]:
    """Stream and value of every record in the quarantine, each with a reason."""
    records = stored(http, f"{name}-aside")
    assert all(record["reason"].endswith(".") for record in records), records
    return [(record["record"]["stream"], record["record"]["value"]) for record in records]


@pytest.mark.parametrize("value", [SURROGATE, DEEP, INFINITE, "{", "1,2", "1],[2", "", None])
def test_a_row_that_is_refused_goes_aside_and_a_repeat_changes_nothing(
    http: httpx.Client, name: str, value: str | None
) -> None:
    """Between good rows, in an append of its own, and as everything a stream gets."""
    rows = [{"stream": f"{name}/a", "value": each} for each in ("1", "2", value, value, "3")]
    rows.append({"stream": f"{name}/b", "value": value})
    aside = [(f"{name}/a", value)] * 2 + [(f"{name}/b", value)]
    for again in (0, 1):
        done = write_aside(http, name, rows, chunkRows=2)
        assert (done.rows, done.appends, done.quarantined) == (3, 2, 3)
        assert done.repeated == 2 * again
        assert stored(http, f"{name}/a") == [1, 2, 3]
        assert set_aside(http, name) == aside
    write_aside(http, name, [{"stream": f"{name}/a", "value": "4"}], batch=1)
    assert stored(http, f"{name}/a") == [1, 2, 3, 4]


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_a_message_over_the_limit_goes_aside_and_the_others_in_appends_that_fit(
    serve: Serve, name: str, content_type: str
) -> None:
    with client_of(serve(DS_LIMITS__MAX_BODY_BYTES="200000")) as http:
        put(http, name, content_type=content_type)
        sizes = [10, 90_000, 300_000, 90_000, 90_000, 199_997, 10, 400_000]
        values = [json.dumps("x" * (size - 2)) for size in sizes]
        rows = [{"stream": name, "value": value} for value in (*values, SURROGATE)]
        is_json = content_type == "application/json"
        for again in (False, True):
            done = write_aside(http, name, rows, contentType=content_type)
            assert done.quarantined == (3 if is_json else 2)
            assert (done.repeated == done.appends) == again
            found = [row["value"].decode() for row in batch_rows(http, subscribe=name)]
            fit = [value for value in values if len(value) < 200_000]
            assert found == (fit if is_json else [*fit, SURROGATE])
            records = stored(http, f"{name}-aside")
            assert [record["cut"]["value"] for record in records[:2]] == [300_000, 400_000]
            assert all("200000 in one append" in record["reason"] for record in records[:2])


@pytest.mark.parametrize("bad", ["..", "a//b", "x" * 5000, "\U0001f600" * 1000])
@pytest.mark.parametrize("place", ["base", "bucket"])
def test_a_row_whose_stream_has_no_valid_name_goes_aside(
    http: httpx.Client, name: str, bad: str, place: str
) -> None:
    bucket = name.replace("/", "-")
    assert http.put(f"/{bucket}").status_code == 201
    root = name if place == "base" else f"/{bucket}"
    keys = enumerate(["a", bad, "b"])
    rows: list[dict[str, Any]] = [{"stream": f"{root}/{key}", "value": str(n)} for n, key in keys]
    rows.append({"stream": None, "value": "9"})
    for again in (0, 1):
        done = write_aside(http, name, rows)
        assert (done.rows, done.repeated, done.quarantined) == (2, 2 * again, 2)
        assert [value for _, value in set_aside(http, name)] == ["9", "1"]
    found = [http.get(f"{'' if place == 'bucket' else '/v1/stream/'}{root}/{k}") for k in "ab"]
    assert [answer.json() for answer in found] == [[0], [2]]


def test_reserved_names_go_aside(http: httpx.Client, name: str) -> None:
    names = ["", "/no/x", "\x01", "__ds/x", "__registry__"]
    rows = [{"stream": stream, "value": "1"} for stream in reversed(names)]
    assert write_aside(http, name, rows).quarantined == len(names)
    assert [stream for stream, _ in set_aside(http, name)] == sorted(names)


def test_what_went_in_before_a_crash_is_recognised_when_the_batch_comes_again(
    http: httpx.Client, name: str
) -> None:
    rows = [{"value": value} for value in ("1", SURROGATE, "2", DEEP, "3", INFINITE)]
    write_aside(http, name, rows[:4], stream=name, chunkRows=2)  # the task dies here
    http.delete(f"/v1/stream/{name}-aside").raise_for_status()  # before anything is set aside
    done = write_aside(http, name, rows, stream=name, chunkRows=2)
    assert (done.rows, done.appends, done.repeated, done.quarantined) == (3, 3, 2, 3)
    assert stored(http, name) == [1, 2, 3]
    assert set_aside(http, name) == [(name, value) for value in (SURROGATE, DEEP, INFINITE)]


def test_other_rows_are_recognised_with_a_quarantine_too(http: httpx.Client, name: str) -> None:
    write_aside(http, name, [{"value": "1"}, {"value": SURROGATE}], stream=name)
    for others in (["2", SURROGATE], ["2"], [DEEP, "1", "1"]):
        with pytest.raises(StreamProblem, match=rf"{name}-0 has already written different rows"):
            write_aside(http, name, [{"value": value} for value in others], stream=name)
    assert stored(http, name) == [1]
    assert set_aside(http, name) == [(name, SURROGATE)]


def test_what_no_row_is_to_blame_for_still_ends_the_task(serve: Serve, name: str) -> None:
    limits = {"DS_LIMITS__MAX_STREAM_BYTES": "1000", "DS_LIMITS__MAX_APPEND_MESSAGES": "2"}
    with client_of(serve(**limits)) as http:
        with pytest.raises(StreamProblem, match="larger than 1000 bytes"):
            write_aside(http, name, [{"value": json.dumps("x" * 2000)}], stream=name)
        with pytest.raises(StreamProblem, match="at most 2 messages"):
            write_aside(http, name, [{"value": "1"}] * 3, stream=name)


def test_without_the_mechanism_rows_go_aside_too(http: httpx.Client, name: str) -> None:
    put(http, name, content_type="text/plain")
    options: dict[str, Any] = {"stream": name, "exactlyOnce": "false"}
    rows = [{"value": value} for value in ("a", "", "b")]
    for times in (1, 2):
        write(http, rows, quarantineStream=f"{name}-aside", **options)
        assert [row["value"] for row in batch_rows(http, subscribe=name)] == [b"a", b"b"] * times
        assert len(stored(http, f"{name}-aside")) == times


def test_a_token_goes_to_no_other_server_than_its_own() -> None:
    def token(**options: str) -> Any:
        given = {"url": "http://a", "token": "t", "quarantineStream": "q"} | options
        return write_options(given).quarantine_settings.token

    assert (token(), token(quarantineUrl="http://a/")) == ("t", "t")
    assert token(quarantineUrl="http://b") is None
    assert token(quarantineUrl="http://b", quarantineToken="u") == "u"


def test_a_name_that_would_set_every_row_aside_is_an_option_error() -> None:
    for options in ({"stream": "a//b"}, {"stream": "a", "quarantineStream": "/x/y"}):
        with pytest.raises(OptionError, match="cannot be a stream's name"):
            write_options({"url": "http://a", "quarantineStream": "q"} | options)
