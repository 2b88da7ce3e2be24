"""The data source `headrace` inside Spark: both ways, both kinds, and through a crash."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import httpx
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

from tests.spark.helpers import post, put, stored

pytestmark = pytest.mark.slow

_numbers = count()


@pytest.fixture
def name() -> str:
    return f"spark/session/{next(_numbers)}"


def reading(spark: SparkSession, http: httpx.Client, **options: str) -> DataFrame:
    return spark.readStream.format("headrace").options(url=str(http.base_url), **options).load()


def run(rows: DataFrame, http: httpx.Client, checkpoint: Path, **options: str) -> None:
    """Everything that is there, to a stream, and stop."""
    query = (
        rows.writeStream.format("headrace")
        .options(url=str(http.base_url), **options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_a_batch_is_read_parsed_and_written(
    spark: SparkSession, http: httpx.Client, name: str
) -> None:
    put(http, name, b'[{"n":1,"s":"a"},{"n":2,"s":"b"}]')
    put(http, f"{name}/out")
    rows = spark.read.format("headrace").options(url=str(http.base_url), subscribe=name).load()
    assert rows.columns == ["stream", "value", "offset", "content_type"]
    parsed = rows.select(from_json(col("value").cast("string"), "n long, s string").alias("v"))
    assert [(row.v.n, row.v.s) for row in parsed.collect()] == [(1, "a"), (2, "b")]
    large = spark.range(3).selectExpr("to_json(struct(id)) AS value").coalesce(1)
    options = {"url": str(http.base_url), "stream": f"{name}/out"}
    large.write.format("headrace").options(**options).mode("append").save()
    assert stored(http, f"{name}/out") == [{"id": 0}, {"id": 1}, {"id": 2}]


def test_a_frame_that_was_filtered_by_stream_still_has_every_stream(
    spark: SparkSession, http: httpx.Client, name: str
) -> None:
    """Spark 4.3 keeps the filters that a source took for the next query over the same frame, so
    that a source which takes them loses rows (docs/spark/streams.md)."""
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    names = [f"{name}/a", f"{name}/b"]
    for each in names:
        put(http, each, b"1")
    options = {"url": str(http.base_url), "subscribe": ",".join(names)}
    spark.conf.set(setting, "true")
    try:
        read = spark.read.format("headrace").options(**options).load()
        assert [row.stream for row in read.where(read.stream == names[0]).collect()] == names[:1]
        assert sorted(row.stream for row in read.collect()) == names
    finally:
        assert before is not None
        spark.conf.set(setting, before)


def test_a_batch_read_of_nothing_has_no_rows(
    spark: SparkSession, http: httpx.Client, name: str
) -> None:
    put(http, f"{name}/empty")
    end = put(http, f"{name}/full", b"[1,2]")
    http.put("/spark-session-empty")
    nothing = [
        {"subscribe": f"{name}/empty"},
        {"subscribe": f"{name}/full", "startingOffsets": "latest"},
        {
            "subscribe": f"{name}/full",
            "startingOffsets": json.dumps({f"{name}/full": end}),
            "endingOffsets": json.dumps({f"{name}/full": "-1"}),
        },
        {"subscribePattern": f"{name}/none"},
        {"bucket": "spark-session-empty"},
    ]
    for options in nothing:
        rows = spark.read.format("headrace").options(url=str(http.base_url), **options).load()
        assert rows.collect() == [], options


def test_a_stream_is_copied_over_restarts_and_only_once(
    spark: SparkSession, http: httpx.Client, name: str, tmp_path: Path
) -> None:
    put(http, name, b"[1,2,3]")
    put(http, f"{name}/copy")
    rows = reading(spark, http, subscribe=name, maxMessagesPerTrigger="2")
    run(rows, http, tmp_path, stream=f"{name}/copy")
    post(http, name, b"[4,5]")
    run(rows, http, tmp_path, stream=f"{name}/copy")
    assert stored(http, f"{name}/copy") == [1, 2, 3, 4, 5]


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died after the batch's work and before it noted that."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()


@pytest.mark.parametrize(("mechanism", "copies"), [("true", 1), ("false", 2)])
def test_a_batch_that_runs_again_is_recognised(
    spark: SparkSession,
    http: httpx.Client,
    name: str,
    tmp_path: Path,
    mechanism: str,
    copies: int,
) -> None:
    """Guards the names of Spark's own properties, and shows what happens without them."""
    put(http, name, json.dumps(list(range(50))).encode())
    put(http, f"{name}/copy")
    rows = reading(spark, http, subscribe=name)
    options = {"stream": f"{name}/copy", "chunkRows": "20", "exactlyOnce": mechanism}
    run(rows, http, tmp_path, **options)
    forget_last_commit(tmp_path)
    post(http, name, b"[50]")
    run(rows, http, tmp_path, **options)
    assert stored(http, f"{name}/copy") == [*range(50)] * copies + [50]


def test_a_lost_checkpoint_is_loud_with_a_producer_id_of_one_s_own(
    spark: SparkSession, http: httpx.Client, name: str, tmp_path: Path
) -> None:
    put(http, name)
    put(http, f"{name}/copy")
    rows = reading(spark, http, subscribe=name)
    options = {"stream": f"{name}/copy", "producerId": name}
    for body in (b"[1]", b"[2]"):
        post(http, name, body)
        run(rows, http, tmp_path / "first", **options)
    with pytest.raises(StreamingQueryException, match="batch 0 comes late"):
        run(rows, http, tmp_path / "second", **options)
    assert stored(http, f"{name}/copy") == [1, 2]


def test_many_streams_go_where_their_rows_say(
    spark: SparkSession, http: httpx.Client, name: str, tmp_path: Path
) -> None:
    for number in range(30):
        put(http, f"{name}/in/{number}", b"[%d,%d]" % (number, number + 100))
        put(http, f"{name}/out/{number}")
    rows = reading(spark, http, subscribePattern=f"{name}/in/.*")
    renamed = rows.selectExpr("replace(stream, '/in/', '/out/') AS stream", "value")
    run(renamed, http, tmp_path)
    for number in range(30):
        assert stored(http, f"{name}/out/{number}") == [number, number + 100]


def test_a_bad_row_ends_the_query_with_its_reason_and_a_better_one_goes_on(
    spark: SparkSession, http: httpx.Client, name: str, tmp_path: Path
) -> None:
    put(http, name, b'["{", "1"]')
    put(http, f"{name}/copy")
    rows = reading(spark, http, subscribe=name)
    unquoted = "get_json_object(cast(value as string), '$') AS value"
    with pytest.raises(StreamingQueryException, match="is not one JSON value"):
        run(rows.selectExpr(unquoted), http, tmp_path, stream=f"{name}/copy")
    assert stored(http, f"{name}/copy") == []
    run(rows.select("value"), http, tmp_path, stream=f"{name}/copy")
    assert stored(http, f"{name}/copy") == ["{", "1"]
