"""The data sources in a session of Spark Connect, which looks them up on its server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.client import Client
from headrace.spark.session import prepare_environment
from headrace.testing.server_process import ServerProcess

pytestmark = pytest.mark.slow
_DEADLINE_SECS = 240

# In a process of its own: one process has either kind of session.
_PROGRAM = """
import sys
from pyspark.sql import SparkSession

url, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[1]").getOrCreate()
assert "connect" in type(spark).__module__, type(spark)
rows = spark.read.format("headrace").options(url=url, subscribe="connect/in").load().collect()
assert [row.value for row in rows] == [b'{"n":1}', b'{"n":2}'], rows
read = spark.readStream.format("headrace").options(url=url, subscribe="connect/in").load()
query = (
    read.select("value")
    .writeStream.format("headrace")
    .options(url=url, stream="connect/out", createStreams="true")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
assert query.awaitTermination(120)
spark.stop()
"""


def test_streams_are_read_and_written_through_spark_connect(
    server: ServerProcess, tmp_path: Path
) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio, which `make setup` installs")
    prepare_environment()
    with Client(server.url) as client:
        client.stream("connect/in").create("application/json", data=b'[{"n":1},{"n":2}]')
        command = [sys.executable, "-c", _PROGRAM, server.url, str(tmp_path)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_DEADLINE_SECS,
            env=os.environ | {"PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        assert client.stream("connect/out").read_json() == [{"n": 1}, {"n": 2}]
