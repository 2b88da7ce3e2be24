"""What a person is told of a failure: one sentence out of the pages that Spark gives."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

from headrace.spark.pipelines.runner import explain

FAILED = "[STREAM_FAILED] Query [id = 876e, runId = ad78] terminated with exception: "
DETAILS = """ SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: archive [id = 876e, runId = ad78]
Current Committed Offsets: {}

Logical Plan:
WriteToMicroBatchDataSource headrace_lake
"""
TRACE = "Traceback (most recent call last):\n"
JAVA = "\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:581)\n"

CONNECT = (
    "[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source writer: "
    + TRACE
    + '  File "/src/headrace/spark/sources/postgres_sink.py", line 57, in streamWriter\n'
    "    sink.make_ready()\n"
    '  File "/src/headrace/postgres/ledger.py", line 108, in prepare\n'
    "    with psycopg.connect(url) as connection:\n"
    "         ^^^^^^^^^^^^^^^^^^^^\n"
    "psycopg.OperationalError: connection failed: Connection refused\n"
    "\tIs the server running on that host and accepting TCP/IP connections?\n"
)
COMMIT = (
    "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform "
    "commit: " + TRACE + '  File "/src/headrace/spark/sources/lake.py", line 124, in commit\n'
    "    self._commit(messages, batchId)\n"
    "ValueError: Invalid path, hierarchical namespaces are not supported: headrace.v1.0\n"
)
WORKER = (
    "[FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: An exception was raised by the Python Proxy. "
    "Return Message: " + TRACE + '  File "/site-packages/pyspark/sql/utils.py", line 166, in call\n'
    "    raise e\n"
    "pyspark.errors.exceptions.captured.PythonException: "
    "An exception was thrown from the Python worker:\n"
    + TRACE
    + '  File "/src/headrace/spark/streams/reader.py", line 156, in read\n'
    '    assert isinstance(partition, StreamPartition), "partitions are our own"\n'
    "AssertionError: partitions are our own\n\n" + JAVA
)
REFUSED = (
    TRACE + '  File "/src/headrace/postgres/writing.py", line 9, in write\n'
    "    cursor.execute(query)\n"
    "psycopg.errors.FeatureNotSupported: unsupported XML feature\n"
    "LINE 2: ...,234.50', '<a/>', '1...\n"
    "                      ^\n"
    "DETAIL:  This functionality requires the server to be built with libxml support.\n"
)
CHAINED = (
    TRACE + '  File "/src/headrace/postgres/writing.py", line 9, in write\n'
    "    cursor.execute(query)\n"
    "psycopg.errors.UndefinedColumn: there is no nocol\n\n"
    "The above exception was the direct cause of the following exception:\n\n"
    + TRACE
    + '  File "/src/headrace/postgres/ledger.py", line 9, in write\n'
    "    raise SinkError(message)\n"
    "headrace.postgres.ledger.SinkError: p3 does not fit: there is no nocol\n"
    + JAVA
    + TRACE
    + '  File "/site-packages/pyspark/worker.py", line 1, in main\n'
    "    process()\n"
    "OSError: the socket is closed\n"
)
JAVA_ONLY = (
    "[DUPLICATED_FIELD_NAME_IN_ARROW_STRUCT] Duplicated field names, got [payload, payload]."
)


class Failed(StreamingQueryException):
    """As Spark raises it, without the Java object."""

    def __init__(self, text: str, cause: Exception | None = None) -> None:
        self._text = text
        self._cause = cause

    def __str__(self) -> str:
        return FAILED + self._text + DETAILS


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (CONNECT, "psycopg.OperationalError: connection failed: Connection refused"),
        (COMMIT, "ValueError: Invalid path, hierarchical namespaces are not supported: "
         "headrace.v1.0"),
        (WORKER, "AssertionError: partitions are our own"),
        (REFUSED, "psycopg.errors.FeatureNotSupported: unsupported XML feature DETAIL: This "
         "functionality requires the server to be built with libxml support."),
        (CHAINED, "headrace.postgres.ledger.SinkError: p3 does not fit: there is no nocol"),
        (JAVA_ONLY, JAVA_ONLY),
    ],
    ids=["connect", "commit", "worker", "detail", "chained", "java"],
)  # fmt: skip
def test_the_reason_is_what_the_innermost_trace_ends_with(text: str, sentence: str) -> None:
    assert explain(Failed(text)) == sentence


def test_an_error_without_a_trace_is_its_own_reason() -> None:
    assert explain(RuntimeError("Postgres is unreachable")) == "Postgres is unreachable"
    assert explain(KeyError()) == "KeyError()"


def test_the_reason_may_be_in_a_cause() -> None:
    failed = Failed("Writing job failed.", Failed("Writing job failed.", Failed(CONNECT)))
    assert explain(failed) == "psycopg.OperationalError: connection failed: Connection refused"
    assert explain(Failed("Writing job failed.")) == "Writing job failed."


@pytest.mark.parametrize("gone", ["java.io.EOFException", "java.net.SocketException: Broken pipe"])
def test_a_planner_that_dies_without_a_word_is_named(gone: str) -> None:
    """What Spark says itself is empty then, and an empty reason would look like none."""
    text = "" if gone.endswith("EOFException") else "Broken pipe"
    told = explain(Failed(text, RuntimeError(gone)))
    assert told.startswith("A Python process of Spark that plans what a source reads has ended")
    assert told.endswith(f"Spark says: {gone}")
