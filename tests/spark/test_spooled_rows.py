"""The rows of a task: not all of them are in memory while they are written to Postgres."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from headrace.postgres.ledger import digest
from headrace.spark.spooled_rows import HeldRows, parts

ROW_BYTES, ROWS, BATCHES = 100_000, 40, 50  # 200 MB

_TASK = f"""
import json, resource, sys
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType
from headrace.spark.batch_ids import BatchOfTask
from headrace.spark.options import Options
from headrace.spark.sources.postgres_sink import NAME, OPTIONS, _Sink

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

schema = StructType([StructField("id", LongType()), StructField("note", StringType())])
given = {{"url": sys.argv[1], "table": "events", "writer": "w"}}
sink = _Sink(Options(NAME, given, OPTIONS), schema, is_query=False)
sink.make_ready()

def batches(count):
    for number in range(count):
        ids = list(range(number * {ROWS}, (number + 1) * {ROWS}))
        yield pa.record_batch({{"id": ids, "note": ["x" * {ROW_BYTES}] * {ROWS}}})

sink.write(BatchOfTask("query", 0, 0), batches(1))
before = peak()
done = sink.write(BatchOfTask("query", 1, 0), batches({BATCHES}))
print(json.dumps([done.rows, peak() - before]))
"""


@pytest.mark.slow
def test_a_partition_larger_than_memory_is_written_in_parts(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("create table events (id bigint, note text)")
    command = [sys.executable, "-c", _TASK, database]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows, grown = json.loads(done.stdout)
    assert rows == ROWS * BATCHES
    assert grown < ROW_BYTES * ROWS * BATCHES / 4, f"{grown / 1e6:.0f} MB more than one batch"
    with psycopg.connect(database) as connection:
        found = connection.execute("select count(distinct id), sum(length(note)) from events")
        assert found.fetchone() == (ROWS * BATCHES, ROWS * (BATCHES + 1) * ROW_BYTES)


def numbers(first: int, count: int) -> pa.RecordBatch:
    found = list(range(first, first + count))
    texts = [None if n % 7 else str(n) for n in found]
    return pa.record_batch({"n": found, "text": pa.array(texts, pa.string())})


@pytest.mark.parametrize("memory_bytes", [0, 1000, 1_000_000])
def test_rows_come_back_in_order_as_often_as_they_are_asked_for(
    memory_bytes: int, tmp_path: Path
) -> None:
    with HeldRows(memory_bytes, 400) as held:
        for number in range(10):
            held.add(numbers(number * 100, 100))
        held.add(numbers(0, 0))
        for _ in range(2):
            found = [n for batch in held for n in batch["n"].to_pylist()]
            assert found == list(range(1000))
        assert max(batch.nbytes for batch in held) <= 400
        assert len(held[1:3]) == 2
    with HeldRows() as nothing:
        assert list(nothing) == []


def test_a_row_larger_than_a_part_is_one_by_itself() -> None:
    batch = pa.record_batch({"v": ["x" * 1000, "y", "z" * 1000]})
    assert [part.num_rows for part in parts(batch, 100)] == [1, 1, 1]


def test_the_digest_of_rows_does_not_depend_on_how_they_are_cut() -> None:
    whole = digest([numbers(0, 950)])
    for step in (1, 99, 100, 101, 950):
        assert digest(numbers(n, min(step, 950 - n)) for n in range(0, 950, step)) == whole
    assert digest([numbers(0, 951)]) != whole
    assert digest([numbers(1, 950)]) != whole
